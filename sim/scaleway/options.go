// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"log/slog"
	"time"

	"k8s.io/utils/clock"
)

// Type is a server type that can be ordered.
type Type struct {
	Name     string
	Cores    int
	MemoryGB int
	// Stock is the number of servers that can be ordered. A negative number means no limit.
	Stock int
}

// Options configures a simulator. The zero value is valid.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards all

	// Project and SecretKey are the UUIDs of the only project and of its API key. Defaults:
	// DefaultProject and DefaultSecretKey.
	Project, SecretKey string
	// Zone is the zone of all servers. Default: fr-par-1.
	Zone string
	// Types holds the server types that can be ordered. Default: M4-S without a limit.
	Types []Type
	// OS holds the names of the operating systems. The first one is the default. Default: one macOS
	// Sequoia and one macOS Sonoma.
	OS []string
	// Quota is the maximum number of servers of the project. 0 means no limit.
	Quota int

	// DeliveryTime, RebootTime and ReinstallTime are how long these operations take. Defaults: 10
	// min, 2 min, 20 min.
	DeliveryTime, RebootTime, ReinstallTime time.Duration
	// MinimumLease is the time before which a server can't be deleted. Default: 24 h.
	MinimumLease time.Duration

	// Address returns the IP address of a server that is delivered. It may start a host. The
	// simulator holds its lock during the call. Default: addresses of 192.0.2.0/24 in turn.
	Address func(Server) string
	// OnChange is called after a server was rebooted, reinstalled or deleted. The simulator holds
	// its lock during the call.
	OnChange func(Server, Event)
}

// Event is the kind of change that OnChange receives.
type Event string

// The events of a server.
const (
	Rebooted    Event = "rebooted"
	Reinstalled Event = "reinstalled"
	Deleted     Event = "deleted"
)

// The project and the API key that Options has by default.
const (
	DefaultProject   = "105494bd-0d54-4f0c-9c0d-3a2b1c0d9e8f"
	DefaultAccessKey = "SCWSIMULATOR00000000"
	DefaultSecretKey = "6170692d-7365-4372-8574-2d6b65792121"
)

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}

	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}

	setDefault(&o.Project, DefaultProject)
	setDefault(&o.SecretKey, DefaultSecretKey)
	setDefault(&o.Zone, "fr-par-1")
	setDefault(&o.DeliveryTime, 10*time.Minute)
	setDefault(&o.RebootTime, 2*time.Minute)
	setDefault(&o.ReinstallTime, 20*time.Minute)
	setDefault(&o.MinimumLease, 24*time.Hour)

	if o.Types == nil {
		o.Types = []Type{{Name: "M4-S", Cores: 10, MemoryGB: 16, Stock: -1}}
	}

	if o.OS == nil {
		o.OS = []string{"macos-sequoia-15.6", "macos-sonoma-14.6"}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Fault makes calls fail or take longer.
type Fault struct {
	// Method and Path (a part of the path) select the calls. An empty value selects all calls.
	Method, Path string
	// Times is the number of calls that the fault affects. 0 means all calls.
	Times int
	// Status is the HTTP status of the error response, and Type is the standard error in its body
	// (out_of_stock, quotas_exceeded, ...). If Status is 0, the simulator sends its own response.
	Status int
	Type   string
	// RunsCall makes the simulator run the call before it sends the error response.
	RunsCall bool
	// Delay is how long the simulator waits before it sends a response, by the real clock. The wait
	// ends when the client disconnects.
	Delay time.Duration
}

// Violation is a call that violates the contract of the API.
type Violation struct{ Method, Path, Message string }
