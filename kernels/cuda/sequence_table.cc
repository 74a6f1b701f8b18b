#include "kernels/cuda/sequence_table.h"

#include "kernels/cuda/upload.h"

namespace attention::cuda {
namespace {

bool IsVectorizable(const void* base, const TensorStrides& strides,
                    DataType data_type) {
  constexpr int64_t kVectorBytes = 16;
  const int64_t element = ElementBytes(data_type);
  return strides.dim == 1 &&
         reinterpret_cast<uintptr_t>(base) % kVectorBytes == 0 &&
         strides.token * element % kVectorBytes == 0 &&
         strides.head * element % kVectorBytes == 0;
}

}  // namespace

size_t SequenceTableBytes(int64_t sequence_count) {
  if (sequence_count <= SequenceTable::kMaxInline) return 0;
  return AlignScratch(static_cast<size_t>(sequence_count) *
                      sizeof(SequenceEntry));
}

cudaError_t MakeSequenceTable(
    const HeadConfig& config, const Sequence* sequences, int64_t sequence_count,
    const std::function<int64_t(const Sequence&)>& blocks_of,
    const Scratch& scratch, cudaStream_t stream, SequenceTable* table) {
  const bool is_uploaded = sequence_count > SequenceTable::kMaxInline;
  auto* entries =
      is_uploaded ? static_cast<SequenceEntry*>(scratch.host) : table->inlined;
  int64_t block_count = 0;
  for (int64_t i = 0; i < sequence_count; ++i) {
    const Sequence& s = sequences[i];
    const DataType type = config.data_type;
    entries[i] = {
        .sequence = s,
        .first_block = block_count,
        .query_is_vectorizable = IsVectorizable(s.query, s.query_strides, type),
        .key_is_vectorizable = IsVectorizable(s.key, s.key_strides, type),
        .value_is_vectorizable = IsVectorizable(s.value, s.value_strides, type),
        .output_is_vectorizable =
            IsVectorizable(s.output, s.output_strides, OutputType(type)),
    };
    block_count += blocks_of(s);
  }
  table->count = sequence_count;
  table->block_count = block_count;
  if (!is_uploaded || block_count == 0) return cudaSuccess;
  table->uploaded = static_cast<const SequenceEntry*>(scratch.device);
  return Upload(scratch.host, scratch.device,
                SequenceTableBytes(sequence_count), stream);
}

}  // namespace attention::cuda
