// How gRPC is to serve the methods of AttentionService: those that compute are
// generic ones, taken by CallAcceptor on the bytes as they arrive. The others
// run on gRPC's own threads for such methods.
#ifndef ATTENTION_SERVER_RPC_SERVICE_METHODS_H_
#define ATTENTION_SERVER_RPC_SERVICE_METHODS_H_

#include "attention/v1/attention.grpc.pb.h"

namespace attention {

// Those that use sessions.
using StepMethods = v1::AttentionService::WithGenericMethod_AppendKeysValues<
    v1::AttentionService::WithGenericMethod_StreamAppendKeysValues<
        v1::AttentionService::WithGenericMethod_AttendSession<
            v1::AttentionService::WithGenericMethod_Decode<
                v1::AttentionService::WithGenericMethod_StreamDecode<
                    v1::AttentionService::Service>>>>>;

using ServiceMethods = v1::AttentionService::WithGenericMethod_ComputeAttention<
    v1::AttentionService::WithGenericMethod_StreamComputeAttention<
        v1::AttentionService::WithGenericMethod_StreamAttention<StepMethods>>>;

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_SERVICE_METHODS_H_
