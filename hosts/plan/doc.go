// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan describes a host as an ordered list of parts. The same list is pushed and hashed, so
// the hash always covers what is pushed.
//
//	Config --draft--> Plan{Part, Part, ...} --Steps--> scripts with their input, in order
//	                        |----- Digests --------> which parts have changed (Diff)
//	                        |----- ProbeScript ----> which parts the host has lost (ParseProbe)
//	Config, per-host fields zeroed --draft--> HostConfigHash: one digest for a whole fleet
//
// A part is in the hash if and only if it is applied to a drifted host, because both follow from
// its Schedule. A value that belongs to one host is a field tagged host:"per-host". Credentials are
// [github.com/hyperfleet/hyperfleet/kit/log.Secret] and are in no digest.
//
// The package depends on no operating system. mac/ and linux/ render the plans of their hosts, and
// parts/ holds the parts that both share. All these packages are pure: they use no clock, network
// or files.
package plan
