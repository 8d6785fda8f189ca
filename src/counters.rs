//! Counters that are exported as metrics and as a plain snapshot. Each module has its own.

/// Defines the `Counters` of a module, and `Counts`, a snapshot of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident => $name:literal $({ $label:literal = $value:literal })?, $help:literal;)*) => {
        /// What the counters showed at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub(crate) struct Counts {
            $($(#[$doc])* pub(crate) $field: u64,)*
        }

        /// What has happened since a store was opened.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($field: ::std::sync::atomic::AtomicU64,)*
        }

        impl Counters {
            $(pub(crate) fn $field(&self, by: u64) {
                if by > 0 {
                    self.$field.fetch_add(by, ::std::sync::atomic::Ordering::Relaxed);
                    ::metrics::counter!($name $(, $label => $value)?).increment(by);
                }
            })*

            pub(crate) fn counts(&self) -> Counts {
                Counts { $($field: self.$field.load(::std::sync::atomic::Ordering::Relaxed),)* }
            }

            /// All at zero, and known to the exporter: a counter that is not there until something has happened hides the
            /// first time that it does.
            pub(crate) fn new() -> Self {
                static DESCRIBED: ::std::sync::Once = ::std::sync::Once::new();
                DESCRIBED.call_once(|| {
                    $(::metrics::describe_counter!($name, ::metrics::Unit::Count, $help);)*
                });
                $(::metrics::counter!($name $(, $label => $value)?).increment(0);)*
                Self::default()
            }
        }

        #[cfg(test)]
        mod counter_names {
            #[test]
            fn counters_have_prometheus_names() {
                for name in [$($name,)*] {
                    assert!(name.starts_with("leasehold_") && name.ends_with("_total"), "{name}");
                }
            }
        }
    };
}

pub(crate) use counters;
