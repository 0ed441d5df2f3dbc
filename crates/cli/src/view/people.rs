//! Names of users and groups from the files of this machine.

use forebay_model::{Gid, Uid};
use std::collections::HashMap;

/// Names of users and groups by number.
pub(crate) struct People {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl People {
    /// The users and groups of this machine. Users known only to a directory service are shown as numbers.
    pub(crate) fn here() -> People {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        People { users: names(&read("/etc/passwd")), groups: names(&read("/etc/group")) }
    }

    pub(crate) fn user(&self, uid: Uid) -> String {
        self.users.get(&uid.0).cloned().unwrap_or_else(|| uid.to_string())
    }

    pub(crate) fn group(&self, gid: Gid) -> String {
        self.groups.get(&gid.0).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// `name:x:number:…` in both files; the first name of a number counts.
fn names(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(number)) = (fields.next(), fields.nth(1).and_then(|text| text.parse().ok()))
        {
            names.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_name_of_a_number_counts() {
        let names = names("root:x:0:0:root:/root:/bin/bash\ntoor:x:0:0::/:/bin/sh\nbroken\n");
        let people = People { users: names, groups: HashMap::new() };
        assert_eq!(people.user(Uid(0)), "root");
        assert_eq!(people.user(Uid(7)), "7");
        assert_eq!(people.group(Gid(0)), "0");
    }
}
