"""Why calls with sessions fail."""

from call_errors import CallError


class SessionError(CallError):
  """As CallError."""

  @property
  def is_gone(self):
    """Whether the session's tokens are gone; Session.rebuild helps."""
    return self.reason in ("SESSION_NOT_FOUND", "SESSION_LOST")

  def has_appended(self, position, token_count):
    """Whether the tokens are there: only the answer of an attempt got lost."""
    return (self.reason == "POSITION_TAKEN" and
            self.facts.get("token_count") == str(position + token_count))
