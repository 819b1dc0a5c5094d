//! The Trace service: the journal over the socket, and back into the engine's own types.

use tonic::{Request, Response, Status};
use zvolt_proto::trace as proto;

use super::calls::{Calls, Work};
use super::check;
use crate::ops::{Journal, Operation, timeline::StepRecord};

/// Serves the journal.
#[derive(Debug)]
pub(super) struct TraceService {
    pub(super) journal: Journal,
    pub(super) calls: Calls,
}

#[tonic::async_trait]
impl proto::trace_server::Trace for TraceService {
    async fn list_operations(
        &self,
        request: Request<proto::ListOperationsRequest>,
    ) -> Result<Response<proto::ListOperationsResponse>, Status> {
        self.calls
            .serve(
                "ListOperations",
                request,
                |m| &m.volume,
                |message| {
                    let volume = Some(message.volume.as_str()).filter(|id| !id.is_empty());
                    volume.map_or(Ok(()), |id| check::volume_id(id).map(drop))?;
                    let mut operations = self.journal.operations(volume);
                    if let limit @ 1.. = usize::try_from(message.limit).unwrap_or(usize::MAX) {
                        operations.drain(..operations.len().saturating_sub(limit));
                    }
                    Ok(Work::Done(proto::ListOperationsResponse {
                        operations: operations.into_iter().map(to_proto).collect(),
                    }))
                },
            )
            .await
    }
}

fn to_proto(operation: Operation) -> proto::Operation {
    proto::Operation {
        name: operation.name.into_owned(),
        volume: operation.volume,
        started_unix_nanos: operation.started,
        total_nanos: operation.total,
        error: operation.error.unwrap_or_default(),
        steps: operation
            .steps
            .into_iter()
            .map(|step| proto::Step {
                name: step.name.into_owned(),
                offset_nanos: step.offset,
                duration_nanos: step.duration,
                error: step.error.unwrap_or_default(),
            })
            .collect(),
    }
}

/// An operation as the engine has it.
pub fn from_proto(operation: proto::Operation) -> Operation {
    let error = |text: String| Some(text).filter(|text| !text.is_empty());
    Operation {
        name: operation.name.into(),
        volume: operation.volume,
        started: operation.started_unix_nanos,
        total: operation.total_nanos,
        error: error(operation.error),
        steps: operation
            .steps
            .into_iter()
            .map(|step| StepRecord {
                name: step.name.into(),
                offset: step.offset_nanos,
                duration: step.duration_nanos,
                error: error(step.error),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Timeline;

    #[test]
    fn an_operation_comes_back_as_it_went() {
        let mut timeline = Timeline::start("Test", "pvc-1", None);
        let _ = timeline.step("fine", || Ok::<_, String>(()));
        let _ = timeline.step("not", || Err::<(), _>("no"));
        let operation = timeline.end(Err("no".into()));
        assert_eq!(from_proto(to_proto(operation.clone())), operation);
    }
}
