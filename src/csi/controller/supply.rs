//! GetCapacity: what the pools can really give.

use std::time::Instant;

use zvolt_proto::csi;

use super::Controller;
use super::create::one_fs_type;
use crate::csi::check;
use crate::csi::status::Refusal;
use crate::model::capacity;
use crate::model::parameters::{DEFAULT_BLOCK, Parameters};
use crate::model::placement::{Demand, supply};
use crate::model::volume::{FsType, Provisioning, VolumeMode};
use crate::store::Store;

/// GetCapacity, checked.
#[derive(Debug, Clone)]
pub(super) struct Inquiry {
    pools: Vec<String>,
    block: u64,
    provisioning: Provisioning,
    /// What is made on the volumes, as far as the caller says; none for a raw device.
    fs_type: Option<FsType>,
}

impl Inquiry {
    /// Checks the request; `None` when no volume of that kind can be had.
    pub(super) fn parse(request: &csi::GetCapacityRequest) -> Result<Option<Self>, Refusal> {
        let parameters = match request.parameters.is_empty() {
            true => None,
            false => Some(Parameters::parse(&request.parameters)?),
        };
        // Volumes have no topology: wherever that is, there is none of ours in particular.
        let topology = request.accessible_topology.as_ref();
        if topology.is_some_and(|topology| !topology.segments.is_empty()) {
            return Ok(None);
        }
        let said = parameters.as_ref().and_then(|p| p.fs_type);
        let fs_type = match request.volume_capabilities.as_slice() {
            [] => None,
            given => match check::capabilities(given) {
                Ok(capability) if capability.volume_mode == VolumeMode::Filesystem => {
                    Some(one_fs_type(capability.fs_type, said)?.unwrap_or_default())
                }
                Ok(_) => None,
                Err(_) => return Ok(None),
            },
        };
        let block = parameters.as_ref().and_then(|p| p.block);
        Ok(Some(Self {
            block: block.unwrap_or(DEFAULT_BLOCK),
            provisioning: parameters
                .as_ref()
                .map(|p| p.tuning.provisioning)
                .unwrap_or_default(),
            pools: parameters.map(|p| p.pools).unwrap_or_default(),
            fs_type,
        }))
    }
}

impl<S: Store> Controller<S> {
    /// What is left for such volumes. A thin volume may be larger than that, as long as its pool could hold it.
    pub(super) async fn supply(
        &self,
        inquiry: Inquiry,
        deadline: Instant,
    ) -> Result<csi::GetCapacityResponse, Refusal> {
        let (nodes, claims) = self.stock(deadline).await?;
        let demand = Demand {
            node: None,
            pools: &inquiry.pools,
            bytes: 0,
            block: inquiry.block,
            provisioning: inquiry.provisioning,
        };
        let supply = supply(&nodes, &claims, &demand);
        let largest = supply.largest.min(capacity::most(inquiry.fs_type));
        let least = capacity::least(inquiry.block, inquiry.fs_type);
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(csi::GetCapacityResponse {
            available_capacity: signed(supply.available),
            maximum_volume_size: Some(signed(largest)),
            minimum_volume_size: Some(signed(least)),
        })
    }
}
