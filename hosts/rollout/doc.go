// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rollout decides which hosts of a fleet may be pushed to now. It is pure.
//
//	Policy, State, Hosts, desired hash, now ──► Decide ──► State with permits, Report
//
// A permit allows one push to one host and has a number. A host uses a permit up, or returns it
// unused, by recording its number in the host's status. Until then the permit counts as in flight,
// even if another process becomes the leader. All permits of a fleet are written as one value, so
// there are never more than allowed.
//
//   - At most MaxUnavailable permits are in flight.
//   - An available host gets a permit only while fewer than MaxUnavailable hosts are unavailable. A
//     host is unavailable if it is in flight, unreachable or terminally failed. A host that is
//     already unavailable may get a permit at any time, because the push may fix it.
//   - Canaries go first. Until the number of canaries have the configuration, no more hosts are in
//     flight than canaries are missing.
//   - If too many hosts refuse a configuration, its rollout stops until the configuration changes
//     or somebody resumes the fleet.
//   - An update of a host's operating system counts as an update. The desired hash contains the
//     version, and a host has that hash once it has both the configuration and the version.
//   - Jitter and maintenance windows delay updates. Repairs wait for neither, nor for canaries, and
//     a stopped rollout does not stop them, because they restore what the host had. Pausing the fleet
//     holds back everything.
//   - First boots need no permit, because the host runs nothing yet that a push could disturb.
//     Their refusals count towards the threshold.
package rollout
