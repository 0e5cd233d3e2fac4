// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"log/slog"
	"time"

	"k8s.io/utils/clock"
)

// Type of server that can be ordered.
type Type struct {
	Name     string
	Cores    int
	MemoryGB int
	// Stock is how many can be ordered; below 0 for as many as anybody wants.
	Stock int
}

// Options of a simulator. The zero value is ready.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards

	// Project and SecretKey of the one project, UUIDs; the defaults are DefaultProject and
	// DefaultSecretKey.
	Project, SecretKey string
	// Zone of all servers. Default: fr-par-1.
	Zone string
	// Types in stock. Default: M4-S, as many as anybody wants.
	Types []Type
	// OS are the names of operating systems; the first is the default. Default: two of them.
	OS []string
	// Quota is the most servers of the project; 0 for none.
	Quota int

	// How long things take. Defaults: 10 min, 2 min, 20 min.
	Deliver, Reboot, Reinstall time.Duration
	// Lease is the least time for which a server is had. Default: 24 h.
	Lease time.Duration

	// Address gives a server's IP address when it is delivered. It may start a host. It is
	// called under the simulator's lock. Default: addresses of 192.0.2.0/24 in turn.
	Address func(Server) string
	// Changed is told, under the lock, of a server that was restarted or installed anew, and
	// of one that is gone.
	Changed func(Server, Event)
}

// Event is what happened to a server.
type Event string

// The events.
const (
	Rebooted    Event = "rebooted"
	Reinstalled Event = "reinstalled"
	Deleted     Event = "deleted"
)

// The one project and API key, if Options name no others.
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
	setDefault(&o.Deliver, 10*time.Minute)
	setDefault(&o.Reboot, 2*time.Minute)
	setDefault(&o.Reinstall, 20*time.Minute)
	setDefault(&o.Lease, 24*time.Hour)

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

// Fault is trouble for calls.
type Fault struct {
	// Method and Path (a part of it) of the calls concerned; empty for any.
	Method, Path string
	// Times is for how many calls; 0 for all.
	Times int
	// Status of the answer, with Type as its standard error (out_of_stock, quotas_exceeded,
	// ...). 0 for no answer of trouble.
	Status int
	Type   string
	// Late carries out the call before its answer is lost to the fault.
	Late bool
	// Delay of the answer, by the real clock, or until the caller goes.
	Delay time.Duration
}

// Violation is a breach of the API's contract.
type Violation struct{ Method, Path, Message string }
