//! What every driver writes again, written once. Nothing else in this crate depends on it: use what fits.

mod attach_limit;
mod create_record;
mod kubernetes;
mod paging;
mod place;
mod quantity;
mod volume_id;

pub use attach_limit::{AttachLimit, Reservation};
pub use create_record::CreateRecord;
pub use kubernetes::{ClaimNames, PodInfo, ServiceAccountToken, ServiceAccountTokens};
pub use paging::Pager;
pub use place::Place;
pub use quantity::{Quantity, round_up};
pub use volume_id::{IdCodec, IdFields};
