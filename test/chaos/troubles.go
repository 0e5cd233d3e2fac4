// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// roughName is the trouble that roughAPI makes.
const roughName = "the API server is rough"

// nodes of the hypervisor.
const nodes = 3

// trouble is something that comes, stays and goes.
type trouble struct {
	name string
	// begin has it come, and gives what has it go.
	begin func(f *fleet.Fleet, dice *rand.Rand) (end func())
}

// troubles are those of the world around the operator. Its own end is another matter.
func troubles(api *roughAPI) []trouble {
	const (
		clone  = "/nodes/*/qemu/*/clone"
		start  = "/nodes/*/qemu/*/status/start"
		upload = "/nodes/*/storage/*/upload"
		remove = "/nodes/*/qemu/*"
	)

	fault := func(name string, of pve.Fault) trouble {
		return trouble{name, func(f *fleet.Fleet, dice *rand.Rand) func() {
			of.Probability = 0.3 + 0.7*dice.Float64()

			return f.PVE.AddFault(of)
		}}
	}
	forge := func(name string, faults control.Faults) trouble {
		return trouble{name, func(f *fleet.Fleet, _ *rand.Rand) func() {
			must(f, f.GitHub.SetFaults(faults))

			return func() { must(f, f.GitHub.SetFaults(control.Faults{})) }
		}}
	}

	return []trouble{
		fault("clones are refused", pve.Fault{
			Kind: pve.FaultError, Method: http.MethodPost, Path: clone, Status: http.StatusInternalServerError,
		}),
		fault("clones fail", pve.Fault{Kind: pve.FaultTaskError, Path: clone, Reason: "clone failed: boom"}),
		fault("clones wait for locks", pve.Fault{Kind: pve.FaultTaskLock, Path: clone}),
		fault("starts fail", pve.Fault{Kind: pve.FaultTaskError, Path: start, Reason: "start failed: QEMU exited with code 1"}),
		fault("uploads fail", pve.Fault{Kind: pve.FaultTaskError, Path: upload, Reason: "upload failed: boom"}),
		fault("removals fail", pve.Fault{
			Kind: pve.FaultTaskError, Method: http.MethodDelete, Path: remove, Reason: "destroy failed: boom",
		}),
		fault("answers are lost", pve.Fault{Kind: pve.FaultCutConnection}),
		fault("the hypervisor is down", pve.Fault{Kind: pve.FaultError, Status: http.StatusServiceUnavailable}),
		{"a storage is full", func(f *fleet.Fleet, dice *rand.Rand) func() {
			return f.PVE.AddFault(pve.Fault{Kind: pve.FaultStorageFull, Node: nodeOf(dice), Path: clone})
		}},
		{"a node is down", func(f *fleet.Fleet, dice *rand.Rand) func() {
			node := nodeOf(dice)
			f.PVE.SetNodeDown(node, true)

			return func() { f.PVE.SetNodeDown(node, false) }
		}},
		forge("the CI platform answers 502", control.Faults{ServerError: 0.5}),
		forge("webhooks are lost and repeated", control.Faults{WebhookLost: 0.4, WebhookDuplicated: 0.4, WebhookReordered: 0.4}),
		{roughName, func(*fleet.Fleet, *rand.Rand) func() {
			api.rough.Store(true)

			return func() { api.rough.Store(false) }
		}},
	}
}

// wrongClock is the operator's clock, which may be off. Its timers go on as they are: the
// kernel's do not follow the time of day either.
type wrongClock struct {
	clock.WithTicker

	off atomic.Int64
}

func (c *wrongClock) Now() time.Time { return c.WithTicker.Now().Add(time.Duration(c.off.Load())) }

func (c *wrongClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// step is the trouble that the clock is set wrong, by a minute at most, until it is set right.
func (c *wrongClock) step() trouble {
	return trouble{"the clock is off", func(_ *fleet.Fleet, dice *rand.Rand) func() {
		c.off.Store(dice.Int64N(int64(2*time.Minute)) - int64(time.Minute))

		return func() { c.off.Store(0) }
	}}
}

func nodeOf(dice *rand.Rand) string { return "pve" + strconv.Itoa(1+dice.IntN(nodes)) }

// roughAPI is the operator's way to the API server, on which calls get lost, before or after
// they were heard, while it is rough.
type roughAPI struct {
	rough atomic.Bool

	mu   sync.Mutex
	dice *rand.Rand
}

// way gives a configuration that leads over it.
func (a *roughAPI) way(config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return &roughTransport{a, next} })

	return out
}

type roughTransport struct {
	api  *roughAPI
	next http.RoundTripper
}

// errLost is what became of a call.
var errLost = errors.New("the connection was lost")

// RoundTrip makes a call, or loses it or its answer.
func (t *roughTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	const lostCall, lostAnswer = 0.15, 0.3

	roll := t.api.roll()
	if roll < lostCall {
		return nil, errLost
	}

	response, err := t.next.RoundTrip(request)
	if err != nil || roll >= lostAnswer || request.Method == http.MethodGet {
		return response, err
	}

	return nil, errors.Join(errLost, response.Body.Close())
}

// roll throws the dice; 1 while the way is smooth.
func (a *roughAPI) roll() float64 {
	if !a.rough.Load() {
		return 1
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	return a.dice.Float64()
}

func must(f *fleet.Fleet, err error) {
	if err != nil {
		f.T.Errorf("change the troubles: %v", err)
	}
}
