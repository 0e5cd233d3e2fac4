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

// flakyName is the name of the disturbance that flakyAPI causes.
const flakyName = "calls to the API server fail"

// nodes is the number of nodes of the hypervisor cluster.
const nodeCount = 3

// disturbance is a failure that starts and ends.
type disturbance struct {
	name string
	// begin starts the disturbance, and returns the function that ends it.
	begin func(f *fleet.Fleet, dice *rand.Rand) (end func())
}

// listDisturbances returns the disturbances of the operator's environment. It does not include restarts of
// the operator.
func listDisturbances(api *flakyAPI) []disturbance {
	const (
		clone  = "/nodes/*/qemu/*/clone"
		start  = "/nodes/*/qemu/*/status/start"
		upload = "/nodes/*/storage/*/upload"
		remove = "/nodes/*/qemu/*"
	)

	fault := func(name string, spec pve.Fault) disturbance {
		return disturbance{name, func(f *fleet.Fleet, dice *rand.Rand) func() {
			spec.Probability = 0.3 + 0.7*dice.Float64()

			return f.PVE.AddFault(spec)
		}}
	}
	forge := func(name string, faults control.Faults) disturbance {
		return disturbance{name, func(f *fleet.Fleet, _ *rand.Rand) func() {
			reportError(f, f.GitHub.SetFaults(faults))

			return func() { reportError(f, f.GitHub.SetFaults(control.Faults{})) }
		}}
	}

	return []disturbance{
		fault("clones are rejected", pve.Fault{
			Kind: pve.FaultError, Method: http.MethodPost, Path: clone, Status: http.StatusInternalServerError,
		}),
		fault("clones fail", pve.Fault{Kind: pve.FaultTaskError, Path: clone, Reason: "clone failed: boom"}),
		fault("clones wait for locks", pve.Fault{Kind: pve.FaultTaskLock, Path: clone}),
		fault("starts fail", pve.Fault{Kind: pve.FaultTaskError, Path: start, Reason: "start failed: QEMU exited with code 1"}),
		fault("uploads fail", pve.Fault{Kind: pve.FaultTaskError, Path: upload, Reason: "upload failed: boom"}),
		fault("deletions fail", pve.Fault{
			Kind: pve.FaultTaskError, Method: http.MethodDelete, Path: remove, Reason: "destroy failed: boom",
		}),
		fault("responses are lost", pve.Fault{Kind: pve.FaultCutConnection}),
		fault("the hypervisor is down", pve.Fault{Kind: pve.FaultError, Status: http.StatusServiceUnavailable}),
		{"a storage is full", func(f *fleet.Fleet, dice *rand.Rand) func() {
			return f.PVE.AddFault(pve.Fault{Kind: pve.FaultStorageFull, Node: randomNode(dice), Path: clone})
		}},
		{"a node is down", func(f *fleet.Fleet, dice *rand.Rand) func() {
			node := randomNode(dice)
			f.PVE.SetNodeDown(node, true)

			return func() { f.PVE.SetNodeDown(node, false) }
		}},
		forge("the CI platform returns 502", control.Faults{ServerError: 0.5}),
		forge("webhooks are lost and repeated", control.Faults{WebhookLost: 0.4, WebhookDuplicated: 0.4, WebhookReordered: 0.4}),
		{flakyName, func(*fleet.Fleet, *rand.Rand) func() {
			api.active.Store(true)

			return func() { api.active.Store(false) }
		}},
	}
}

// offsetClock is the operator's clock, which may be wrong by an offset. The offset does not affect its
// timers, as a change of the system time does not affect the kernel's timers.
type offsetClock struct {
	clock.WithTicker

	offset atomic.Int64
}

func (c *offsetClock) Now() time.Time { return c.WithTicker.Now().Add(time.Duration(c.offset.Load())) }

func (c *offsetClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// newDisturbance returns the disturbance that the clock is wrong by at most one minute.
func (c *offsetClock) newDisturbance() disturbance {
	return disturbance{"the clock is wrong", func(_ *fleet.Fleet, dice *rand.Rand) func() {
		c.offset.Store(dice.Int64N(int64(2*time.Minute)) - int64(time.Minute))

		return func() { c.offset.Store(0) }
	}}
}

func randomNode(dice *rand.Rand) string { return "pve" + strconv.Itoa(1+dice.IntN(nodeCount)) }

// flakyAPI makes the operator's calls to the API server fail at random while it is active. A call fails
// either before the API server receives it, or after the API server has processed it.
type flakyAPI struct {
	active atomic.Bool

	mu   sync.Mutex
	dice *rand.Rand
}

// wrapConfig returns a copy of the client configuration whose calls may fail.
func (a *flakyAPI) wrapConfig(config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return &flakyTransport{a, next} })

	return out
}

type flakyTransport struct {
	api  *flakyAPI
	next http.RoundTripper
}

// errLost is the error of a failed call.
var errLost = errors.New("the connection was lost")

// RoundTrip makes a call, drops the request, or drops the response of a call that is not a GET.
func (t *flakyTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	const lostRequest, lostResponse = 0.15, 0.3

	value := t.api.nextRandom()
	if value < lostRequest {
		return nil, errLost
	}

	response, err := t.next.RoundTrip(request)
	if err != nil || value >= lostResponse || request.Method == http.MethodGet {
		return response, err
	}

	return nil, errors.Join(errLost, response.Body.Close())
}

// nextRandom returns a random number in [0, 1), or 1 while flakyAPI is not active.
func (a *flakyAPI) nextRandom() float64 {
	if !a.active.Load() {
		return 1
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	return a.dice.Float64()
}

func reportError(f *fleet.Fleet, err error) {
	if err != nil {
		f.T.Errorf("change disturbances: %v", err)
	}
}
