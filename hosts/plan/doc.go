// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan says what a host is made of: an ordered list of parts. The same list is
// pushed and hashed, so what is pushed is what is hashed.
//
//	Config --draft--> Plan{Part, Part, ...} --Steps--> scripts with their input, in order
//	                        |----- Digests --------> which parts have changed (Diff)
//	                        |----- ProbeScript ----> which parts the host has lost (ReadProbe)
//	Config, per-host fields zeroed --draft--> HostConfigHash: one digest for a whole fleet
//
// A part has no way to be applied when a host drifts without being in the hash, nor the
// other way round: both follow from its When. A value that belongs to one host alone is a
// field tagged host:"per-host"; credentials are [github.com/hyperfleet/hyperfleet/kit/log.Secret]
// and in no digest.
//
// The package knows no operating system: mac/ and linux/ say what their hosts are made
// of, with what both have in common from parts/. All are pure: no clock, network or files.
package plan
