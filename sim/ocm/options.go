// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// defaultInterval is the default of Options.Interval.
const defaultInterval = 500 * time.Millisecond

// Options configure an Agent.
type Options struct {
	// Hub and Spoke are the client configurations of the API servers. Spoke defaults to Hub.
	Hub, Spoke *rest.Config
	// Cluster is the name of the spoke, and the namespace of its ManifestWorks on the hub. The namespace
	// must exist before the agent starts.
	Cluster string
	// Interval is the interval at which the agent reconciles all ManifestWorks with the objects on the
	// spoke. The agent reacts to changes on the hub immediately. Default: 500ms.
	Interval time.Duration
	// Clock is the agent's clock. Default: the real clock.
	Clock clock.WithTicker
}

// Violation is an action that a correct client does not take.
type Violation struct {
	// Work is the name of the ManifestWork.
	Work string
	// Message is the error message of the webhook.
	Message string
}
