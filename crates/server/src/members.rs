//! The servers of a service: a list that does not change while a server runs.

use forebay_model::{Error, ErrorKind, FileId, Members, Result};
use std::sync::Arc;

/// The servers of a service.
pub trait Membership: Send + Sync {
    /// The current list.
    fn members(&self) -> Arc<Members>;
}

/// A list that never changes.
#[derive(Clone, Debug)]
pub struct Fixed(Arc<Members>);

impl Fixed {
    /// A service of these servers.
    #[must_use]
    pub fn new(members: Members) -> Fixed {
        Fixed(Arc::new(members))
    }
}

impl Membership for Fixed {
    fn members(&self) -> Arc<Members> {
        self.0.clone()
    }
}

/// Refuses a file that was created by a server outside this service.
pub(crate) fn check_maker(members: &dyn Membership, file: FileId) -> Result<()> {
    if members.members().contains(members.members().authority(file)) {
        return Ok(());
    }
    let text =
        format!("file {file} was created by server {}, which is not part of this service", file.maker());
    Err(Error::new(ErrorKind::Stale, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Member, ServerId};

    #[test]
    fn files_of_other_services_are_refused() {
        let member = |n| Member { server: ServerId(n), address: format!("tcp:h{n}:1"), socket: None };
        let members = Fixed::new(Members::new(1, vec![member(4), member(2)]).unwrap());
        assert!(check_maker(&members, FileId::ROOT).is_ok());
        assert!(check_maker(&members, FileId::made_by(ServerId(4), 77)).is_ok());
        let error = check_maker(&members, FileId::made_by(ServerId(3), 77)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale);
    }
}
