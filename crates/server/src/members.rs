//! Who belongs to the service: a list that never changes, for now of one.

use forebay_model::{Error, ErrorKind, FileId, Result, ServerId};

/// The servers of a service.
pub trait Membership: Send + Sync {
    /// All of them, in order.
    fn members(&self) -> Vec<ServerId>;

    /// Grows whenever the list changes.
    fn epoch(&self) -> u64;
}

/// A list that never changes.
#[derive(Clone, Debug)]
pub struct Fixed(Vec<ServerId>);

impl Fixed {
    /// A service of these servers.
    pub fn new(members: impl IntoIterator<Item = ServerId>) -> Fixed {
        let mut members: Vec<ServerId> = members.into_iter().collect();
        members.sort_unstable();
        members.dedup();
        Fixed(members)
    }
}

impl Membership for Fixed {
    fn members(&self) -> Vec<ServerId> {
        self.0.clone()
    }

    fn epoch(&self) -> u64 {
        1
    }
}

/// Refuses a file that was made by a server of some other service.
pub(crate) fn check_maker(members: &dyn Membership, file: FileId) -> Result<()> {
    // The root is made by nobody.
    if file == FileId::ROOT || members.members().contains(&file.maker()) {
        return Ok(());
    }
    let text = format!("file {file} was made by server {}, which is not part of this service", file.maker());
    Err(Error::new(ErrorKind::Stale, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_strangers_are_refused() {
        let members = Fixed::new([ServerId(4), ServerId(2), ServerId(4)]);
        assert_eq!(members.members(), [ServerId(2), ServerId(4)]);
        assert!(check_maker(&members, FileId::ROOT).is_ok());
        assert!(check_maker(&members, FileId::made_by(ServerId(4), 77)).is_ok());
        let error = check_maker(&members, FileId::made_by(ServerId(3), 77)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale);
    }
}
