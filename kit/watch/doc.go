// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch contains what controllers need in addition to controller-runtime's watches:
//
//   - [Source] enqueues reconcile requests for events from outside the Kubernetes API, for example when
//     a hypervisor task ends, a machine reports, a CI platform responds, or work on a host is complete
//   - [ListRequests] returns the objects that an event about another object affects, and [ListAll] all
//     objects of a kind, page by page, and [ListCached] those of a cache without copies
//   - [NewCache] and [NewMapper] let a manager end in time while its caches start
//   - [NewTransform] makes the objects of a cache smaller
//   - [KindWaiter] waits for kinds whose CustomResourceDefinitions are installed or upgraded after the
//     operator. It logs once that it waits, and then starts the controllers that need the kinds
//     without a restart
package watch
