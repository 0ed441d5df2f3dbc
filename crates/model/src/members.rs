//! Membership: the servers of a service, and the hash that maps names and files to them.

use crate::{FileId, Name, ServerId};
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most servers of one service.
pub const MAX_SERVERS: usize = 1024;

/// One server of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub server: ServerId,
    /// Its address: `tcp:host:port`.
    pub address: String,
    /// Its Unix socket, for clients on its own machine.
    #[serde(default)]
    pub socket: Option<String>,
}

/// Which servers store names.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Homes {
    /// All servers, by the hash of each name.
    #[default]
    Spread,
    /// The first server only, because only that one looks up names in the back end.
    First,
}

/// All servers of a service, ordered by number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Members {
    /// Incremented with every change of the list.
    epoch: u64,
    list: Vec<Member>,
    homes: Homes,
}

/// A list before it is checked.
#[derive(Deserialize)]
struct Unchecked {
    epoch: u64,
    list: Vec<Member>,
    homes: Homes,
}

impl TryFrom<Unchecked> for Members {
    type Error = String;

    fn try_from(sent: Unchecked) -> Result<Members, String> {
        Ok(Members::new(sent.epoch, sent.list)?.with_names(sent.homes))
    }
}

/// For messages: `epoch 3: 1 tcp:a:7411, 2 tcp:b:7411`.
impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}:", self.epoch)?;
        for (index, member) in self.list.iter().enumerate() {
            write!(f, "{} {} {}", if index > 0 { "," } else { "" }, member.server, member.address)?;
        }
        match self.homes {
            Homes::Spread => Ok(()),
            Homes::First => write!(f, "; all names with the first"),
        }
    }
}

impl Members {
    /// A service of these servers, or the error in the list.
    pub fn new(epoch: u64, mut list: Vec<Member>) -> Result<Members, String> {
        list.sort_by_key(|member| member.server);
        if list.is_empty() || list.len() > MAX_SERVERS {
            return Err(format!("a service has 1 to {MAX_SERVERS} servers, not {}", list.len()));
        }
        for pair in list.windows(2) {
            if pair[0].server == pair[1].server {
                let (server, one, other) = (pair[0].server, &pair[0].address, &pair[1].address);
                return Err(format!("{one} and {other} are both called server {server}"));
            }
        }
        Ok(Members { epoch, list, homes: Homes::Spread })
    }

    /// Sets which of the servers store names.
    #[must_use]
    pub fn with_names(self, homes: Homes) -> Members {
        Members { homes, ..self }
    }

    /// Which servers store names.
    #[must_use]
    pub fn homes(&self) -> Homes {
        self.homes
    }

    /// The servers that store names, ordered by number.
    pub fn namers(&self) -> impl Iterator<Item = ServerId> + '_ {
        let count = if self.homes == Homes::First { 1 } else { self.list.len() };
        self.servers().take(count)
    }

    /// Incremented with every change of the list.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of servers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Whether there is only one server.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.list.len() == 1
    }

    /// All servers, ordered by number.
    #[must_use]
    pub fn all(&self) -> &[Member] {
        &self.list
    }

    /// Their numbers, in order.
    pub fn servers(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.list.iter().map(|member| member.server)
    }

    /// Whether a server is a member.
    #[must_use]
    pub fn contains(&self, server: ServerId) -> bool {
        self.get(server).is_some()
    }

    /// A member by number.
    #[must_use]
    pub fn get(&self, server: ServerId) -> Option<&Member> {
        let index = self.list.binary_search_by_key(&server, |member| member.server).ok()?;
        Some(&self.list[index])
    }

    /// The server that stores a directory's entry of this name.
    #[must_use]
    pub fn home(&self, dir: FileId, name: &Name) -> ServerId {
        match self.homes {
            Homes::Spread => self.place(dir, name),
            Homes::First => self.first(),
        }
    }

    /// The server of the first stripe of a new file of this name.
    #[must_use]
    pub fn place(&self, dir: FileId, name: &Name) -> ServerId {
        let hash = xxh3_64_with_seed(name.as_bytes(), dir.0);
        self.list[(hash % self.list.len() as u64) as usize].server
    }

    /// The server that stores a file's inode: the one that created it, and the first one for the root.
    #[must_use]
    pub fn authority(&self, file: FileId) -> ServerId {
        if file == FileId::ROOT { self.first() } else { file.maker() }
    }

    /// The server that serialises moves of directories between parents.
    #[must_use]
    pub fn first(&self) -> ServerId {
        self.list[0].server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(count: u16) -> Members {
        let member = |n| Member { server: ServerId(n), address: format!("tcp:h{n}:1"), socket: None };
        Members::new(1, (1..=count).rev().map(member).collect()).unwrap()
    }

    #[test]
    fn member_list_is_sorted_without_duplicates() {
        let four = service(4);
        assert_eq!(four.servers().collect::<Vec<_>>(), [1, 2, 3, 4].map(ServerId));
        assert!(four.contains(ServerId(4)) && !four.contains(ServerId(5)));
        assert_eq!(four.authority(FileId::ROOT), ServerId(1));
        assert_eq!(four.authority(FileId::made_by(ServerId(3), 9)), ServerId(3));
        let twice =
            [1, 2, 1].map(|n| Member { server: ServerId(n), address: "a:1".to_owned(), socket: None });
        assert!(Members::new(1, twice.to_vec()).unwrap_err().contains("server 1"));
        assert!(Members::new(1, Vec::new()).is_err());
        assert_eq!(service(2).to_string(), "epoch 1: 1 tcp:h1:1, 2 tcp:h2:1");
    }

    #[test]
    fn first_server_may_store_all_names() {
        let (spread, first) = (service(3), service(3).with_names(Homes::First));
        let name = |number: u32| Name::new(format!("f{number}")).unwrap();
        let places: Vec<_> = (0..30).map(|number| first.place(FileId::ROOT, &name(number))).collect();
        assert!((1..=3).all(|server| places.contains(&ServerId(server))), "bytes are everywhere");
        assert!(places.iter().zip(0..).all(|(place, n)| spread.home(FileId::ROOT, &name(n)) == *place));
        assert!((0..30).all(|number| first.home(FileId::ROOT, &name(number)) == ServerId(1)));
        assert_eq!((spread.namers().count(), first.namers().collect::<Vec<_>>()), (3, vec![ServerId(1)]));
        assert!(first != spread && first.to_string().contains("all names with the first"));
    }

    #[test]
    fn names_of_one_directory_are_spread_evenly() {
        for servers in [2_u16, 3, 4, 7] {
            let service = service(servers);
            let mut counts = vec![0_u32; usize::from(servers)];
            for number in 0..100_000 {
                let name = Name::new(format!("file.{number:06}")).unwrap();
                let home = service.home(FileId::made_by(ServerId(1), 7), &name);
                counts[usize::from(home.0) - 1] += 1;
            }
            let even = 100_000 / u32::from(servers);
            for count in counts {
                assert!(count.abs_diff(even) * 20 <= even, "{count} of {even} on one of {servers}");
            }
        }
    }
}
