//! Semaphores, and taking leases away.

use super::{HeldBy, maybe_whole, millis, ms, present, whole};
use leasehold::semaphore;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// A lease that is to be taken away.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForceRelease {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The key.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024, value_type = String)]
    pub(crate) key: Option<String>,
    /// The key in base64, if it is not UTF-8.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,340}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)$", value_type = String)]
    pub(crate) key_b64: Option<String>,
    /// Why, for the record.
    #[schema(min_length = 1, max_length = 1024, pattern = "[^\\s]")]
    pub(crate) reason: String,
    /// Who does it, for the record.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub(crate) by: String,
}

/// A lease that was taken away.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct ForceReleased {
    /// From whom; from nobody, if it was free.
    pub(crate) taken_from: Option<HeldBy>,
    /// Refuse lower fences than this.
    pub(crate) fence: u64,
    /// Where it is recorded in the store.
    pub(crate) recorded: String,
}

/// A request for a slot of a semaphore.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcquireSlot {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The semaphore.
    #[schema(min_length = 1, max_length = 1024, example = "gpu")]
    pub(crate) name: String,
    /// How many slots it has. The first who asks decides; another number is refused from then on.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 128, value_type = u32)]
    pub(crate) size: u32,
    /// Who asks.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub(crate) owner: String,
    /// How long the slot lasts without being renewed.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64, default = 30_000, value_type = u64)]
    pub(crate) ttl_ms: Option<u64>,
    /// How long to wait while all slots are held.
    #[serde(default, deserialize_with = "whole")]
    #[schema(value_type = u64, maximum = 4_294_967_295_u64)]
    pub(crate) wait_ms: u32,
}

/// A slot that is to go on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewSlot {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The semaphore.
    #[schema(min_length = 1, max_length = 1024)]
    pub(crate) name: String,
    /// Which, as the answer to its acquire said.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) lease_id: String,
    /// Another time to live than before.
    #[serde(default, deserialize_with = "maybe_whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64, value_type = u64)]
    pub(crate) ttl_ms: Option<u64>,
}

/// A slot that is to be given back.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseSlot {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The semaphore.
    #[schema(min_length = 1, max_length = 1024)]
    pub(crate) name: String,
    /// Which, as the answer to its acquire said.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(crate) lease_id: String,
}

/// Another number of slots.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResizeSemaphore {
    /// The namespace; `default` if left out.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?$", value_type = String)]
    pub(crate) namespace: Option<String>,
    /// The semaphore.
    #[schema(min_length = 1, max_length = 1024)]
    pub(crate) name: String,
    /// How many slots it has from now on. Made smaller, it takes effect as holders leave.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 128, value_type = u32)]
    pub(crate) size: u32,
}

/// A slot that was granted or renewed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Slot {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The number of the slot: no two holders have the same one at once.
    pub(crate) slot: u32,
    /// Which holding it is: needed to renew it and to give it back.
    pub(crate) lease_id: String,
    /// Higher than that of every holder of this slot before.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    pub(crate) fence: u64,
    pub(crate) owner: String,
    pub(crate) ttl_ms: u64,
    /// When it ends, by the clock of the service.
    pub(crate) expires_ms: i64,
    /// How long it lasts from when this is answered. Count it from before the request was sent, plus `waited_ms`.
    pub(crate) expires_in_ms: u64,
    /// How long the request was with the service.
    pub(crate) waited_ms: u64,
}

impl Slot {
    /// `waited` is how long the request was here.
    pub(crate) fn of(slot: &semaphore::Slot, waited: Duration) -> Self {
        Self {
            namespace: slot.namespace().to_string(),
            name: slot.name().to_string(),
            slot: slot.number(),
            lease_id: slot.lease_id().to_string(),
            fence: slot.fence().get(),
            owner: slot.owner().to_owned(),
            ttl_ms: millis(slot.ttl()),
            expires_ms: ms(slot.expires_at()),
            expires_in_ms: millis(slot.time_left()),
            waited_ms: millis(waited),
        }
    }
}

/// What is known of a semaphore.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct SemaphoreStatus {
    pub(crate) name: String,
    /// How many may hold it at once.
    pub(crate) size: u32,
    pub(crate) held_by: Vec<SlotHeldBy>,
    /// How many processes wait.
    pub(crate) waiting: usize,
    pub(crate) last_fence: Option<u64>,
}

/// Who holds a slot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct SlotHeldBy {
    pub(crate) slot: u32,
    pub(crate) holder: HeldBy,
}

impl SemaphoreStatus {
    pub(crate) fn of(status: &semaphore::Status) -> Self {
        let held = |held: &semaphore::SlotHolder| SlotHeldBy { slot: held.slot, holder: HeldBy::from(&held.holder) };
        Self {
            name: status.name.to_string(),
            size: status.size,
            held_by: status.held_by.iter().map(held).collect(),
            waiting: status.waiting,
            last_fence: status.last_fence.map(leasehold::Fence::get),
        }
    }
}
