// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dpfhcpbridge reconciles DPFHCPBridges.
//
//	Pending ──► Provisioning ──► Ready
//	   │           │  ▲  ▲  ──────┘ │      a new release image, or unhealthy
//	   ▼           ▼  │             ▼
//	 Failed ◄──── Failed ◄──── Failed      a person has to act
//	   any ──► Deleting
//
// controller.go has the list of steps and the deletion list; each step is in a file of its
// own. What is looked at before anything is made stops the list when it fails, at any time
// of a bridge's life. All of it is fixed by events: watches.go has an index for each
// object that a bridge stands on, so no event lists all bridges.
//
// The phase is computed from the conditions (phase.go) and read by nobody here.
package dpfhcpbridge
