// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// defaultInterval between two looks at the spoke.
const defaultInterval = 500 * time.Millisecond

// Options of an Agent.
type Options struct {
	// Hub and Spoke are the API servers. Spoke's default is the hub's.
	Hub, Spoke *rest.Config
	// Cluster is the name of the spoke, and the namespace of its ManifestWorks on the hub.
	// It is there before the agent.
	Cluster string
	// Interval between two looks at all works and what is on the spoke; a change on the
	// hub is seen at once. Default: 500ms.
	Interval time.Duration
	// Clock tells the time. Default: the real one.
	Clock clock.WithTicker
}

// Violation is something that a correct client does not do.
type Violation struct {
	// Work is the ManifestWork's name.
	Work string
	// What is wrong with it, in the webhook's words.
	What string
}
