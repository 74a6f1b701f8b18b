// Sums and products of untrusted sizes that remember whether they overflowed.
//
//   CheckedSize elements = CheckedSize(batch) * tokens * heads;
//   if (!elements.valid()) ...  // beyond int64, or a negative factor
#ifndef ATTENTION_SERVER_RPC_CHECKED_MATH_H_
#define ATTENTION_SERVER_RPC_CHECKED_MATH_H_

#include <cstdint>

namespace attention {

// A number in [0, 2^63), or invalid; invalid stays invalid.
class CheckedSize {
 public:
  constexpr CheckedSize(int64_t value) : value_(value), valid_(value >= 0) {}

  constexpr bool valid() const { return valid_; }
  // Meaningful only if valid.
  constexpr int64_t value() const { return value_; }

  // True when invalid too: what cannot be represented exceeds every bound.
  constexpr bool Exceeds(int64_t bound) const {
    return !valid_ || value_ > bound;
  }

  friend constexpr CheckedSize operator+(CheckedSize a, CheckedSize b) {
    CheckedSize sum(0);
    sum.valid_ = !__builtin_add_overflow(a.value_, b.value_, &sum.value_) &&
                 a.valid_ && b.valid_;
    return sum;
  }

  friend constexpr CheckedSize operator*(CheckedSize a, CheckedSize b) {
    CheckedSize product(0);
    product.valid_ =
        !__builtin_mul_overflow(a.value_, b.value_, &product.value_) &&
        a.valid_ && b.valid_;
    return product;
  }

 private:
  int64_t value_;
  bool valid_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_CHECKED_MATH_H_
