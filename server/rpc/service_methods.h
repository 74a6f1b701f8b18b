// How gRPC is to serve the methods of AttentionService: on its threads, without
// blocking; those that carry tensors on the bytes as they arrive.
#ifndef ATTENTION_SERVER_RPC_SERVICE_METHODS_H_
#define ATTENTION_SERVER_RPC_SERVICE_METHODS_H_

#include "attention/v1/attention.grpc.pb.h"

namespace attention {

// Those that register, forget and list regions.
using RegionMethods =
    v1::AttentionService::WithCallbackMethod_RegisterSharedMemoryRegion<
        v1::AttentionService::WithCallbackMethod_RegisterCudaMemoryRegion<
            v1::AttentionService::
                WithCallbackMethod_UnregisterSharedMemoryRegion<
                    v1::AttentionService::
                        WithCallbackMethod_ListSharedMemoryRegions<
                            v1::AttentionService::Service>>>>;

// Those that open, show, keep and end sessions.
using SessionMethods = v1::AttentionService::WithCallbackMethod_CreateSession<
    v1::AttentionService::WithCallbackMethod_GetSession<
        v1::AttentionService::WithCallbackMethod_ListSessions<
            v1::AttentionService::WithCallbackMethod_DeleteSession<
                v1::AttentionService::WithCallbackMethod_RenewSession<
                    v1::AttentionService::WithCallbackMethod_ForkSession<
                        v1::AttentionService::
                            WithCallbackMethod_TruncateSession<
                                RegionMethods>>>>>>>;

// Those that use sessions.
using StepMethods = v1::AttentionService::WithRawCallbackMethod_AppendKeysValues<
    v1::AttentionService::WithRawCallbackMethod_StreamAppendKeysValues<
        v1::AttentionService::WithRawCallbackMethod_AttendSession<
            v1::AttentionService::WithRawCallbackMethod_Decode<
                v1::AttentionService::WithRawCallbackMethod_StreamDecode<
                    SessionMethods>>>>>;

using ServiceMethods =
    v1::AttentionService::WithRawCallbackMethod_ComputeAttention<
        v1::AttentionService::WithRawCallbackMethod_StreamAttention<
            v1::AttentionService::WithCallbackMethod_GetServerInfo<
                StepMethods>>>;

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_SERVICE_METHODS_H_
