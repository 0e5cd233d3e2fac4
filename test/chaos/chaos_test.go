// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.WithCRDs("../../deploy/crds"))
}

const (
	// speed is the factor by which the fleet's clock is faster than the real clock, and soakSpeed the factor in a soak
	// test on a busy machine. All times here are of that clock, except recoveryTimeout.
	speed, soakSpeed = 60, 20
	// defaultTime is how long disturbances are started without CHAOS_TIME. Each lasts between minStay and maxStay.
	defaultTime      = 10 * time.Minute
	minStay, maxStay = 10 * time.Second, time.Hour
	// beatInterval is the interval between random actions.
	beatInterval = 20 * time.Second
	// recoveryTimeout is how long the fleet may take to recover.
	recoveryTimeout = 5 * time.Minute
	machines        = 6
)

// TestSoakChaos checks that a fleet recovers from random disturbances. CHAOS_SEED repeats a run, and CHAOS_TIME is
// the duration of the disturbances.
func TestSoakChaos(t *testing.T) {
	faster := speed
	if os.Getenv("CHAOS_TIME") == "" {
		property.Soak(t)

		faster = soakSpeed
	}

	seed, length := readSettings(t)
	t.Logf("CHAOS_SEED=%d CHAOS_TIME=%s", seed, length)

	dice := rand.New(rand.NewPCG(seed, seed))
	api := &flakyAPI{dice: rand.New(rand.NewPCG(seed, seed+1))}

	clk := conformance.FastClock(t, faster)
	f := fleet.New(t, env, fleet.Options{Model: newModel(), Clock: clk})
	f.Timeout = recoveryTimeout

	own := &offsetClock{WithTicker: clk}
	f.Clock, f.Log = own, createLogFile(t)

	flakyEnv := *f.Env
	flakyEnv.Config = api.wrapConfig(f.Env.Config)
	f.Env = &flakyEnv

	pool := f.NewPool(machines)
	pool.Spec.Demand = &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Interval: &metav1.Duration{Duration: time.Minute}}}

	f.CreateCluster(f.NewCluster())
	f.Create(f.NewTemplate())
	f.Create(pool)

	o := newOracle(f)

	f.Start()
	f.EventuallyReady(f.NewTemplate())

	run := &chaos{Fleet: f, oracle: o, dice: dice, clock: clk, disturbances: append(listDisturbances(api), own.newDisturbance())}
	run.runFor(length)

	f.Eventually("all jobs being completed", func() (bool, string) {
		o.check(t.Context())

		open := 0

		for _, job := range f.GitHub.State().Jobs {
			if job.Status != "completed" {
				open++
			}
		}

		return open == 0, strconv.Itoa(open) + " are not completed"
	})
	f.EventuallyClean()
	f.Eventually("statuses and metrics being correct", func() (bool, string) {
		difference := o.compareStatus(t.Context(), pool)

		return difference == "", difference
	})

	for _, violation := range o.listViolations(run.jobs) {
		t.Error(violation)
	}

	t.Logf("%d jobs, %d claims, %d disturbances, %d machines powered off, %d restarts",
		run.jobs, len(o.claims), run.started, o.killed, run.restarts)
}

// createLogFile creates the file for the operator's log. It is kept if the test fails.
func createLogFile(t *testing.T) *os.File {
	t.Helper()

	file, err := os.CreateTemp("", "hyperfleet-chaos-*.log") //nolint:usetesting // the file outlives the test
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}

		if t.Failed() {
			t.Logf("the operator's log is %s", file.Name())
		} else if err := os.Remove(file.Name()); err != nil {
			t.Error(err)
		}
	})

	return file
}

// newModel returns a hypervisor with realistic delays.
func newModel() pve.Model {
	m := fleet.Model().WithNodes(nodeCount)
	m.StatusLag = 10 * time.Second
	m.Delays = pve.Delays{
		Clone: 15 * time.Second, Upload: time.Second, Start: 2 * time.Second, Boot: 20 * time.Second, Destroy: 3 * time.Second,
	}

	return m
}

// readSettings returns the seed and the duration.
func readSettings(t *testing.T) (uint64, time.Duration) {
	t.Helper()

	seed, length := uint64(time.Now().UnixNano()), defaultTime

	if text := os.Getenv("CHAOS_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}

		seed = n
	}

	if text := os.Getenv("CHAOS_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("CHAOS_TIME: %v", err)
		}

		length = d
	}

	return seed, length
}

// chaos starts and ends disturbances in a fleet.
type chaos struct {
	*fleet.Fleet

	oracle            *oracle
	dice              *rand.Rand
	clock             clock.Clock
	disturbances      []disturbance
	jobs              int
	started, restarts int
}

// activeDisturbance is a disturbance that has been started.
type activeDisturbance struct {
	name  string
	until time.Time
	end   func()
}

// runFor starts and ends random disturbances for the duration, and then ends all of them.
func (c *chaos) runFor(length time.Duration) {
	there := map[string]activeDisturbance{}

	for end := c.clock.Now().Add(length); c.clock.Now().Before(end); <-c.clock.After(beatInterval) {
		c.act(there)
		c.oracle.check(c.T.Context())

		for name, one := range there {
			if c.clock.Now().After(one.until) {
				one.end()
				delete(there, name)
			}
		}
	}

	for _, one := range there {
		one.end()
	}

	c.T.Log("all disturbances have ended")
}

// act performs one random action.
func (c *chaos) act(there map[string]activeDisturbance) {
	const newJobs, newTrouble, switchedOff, deleted, restarted = 0.25, 0.31, 0.33, 0.35, 0.36

	switch roll := c.dice.Float64(); {
	case roll < newJobs:
		n := 1 + c.dice.IntN(2)
		c.jobs += n
		c.GitHub.Queue(control.JobSpec{
			Labels: []string{"linux"}, Count: n, Duration: time.Duration(10+c.dice.IntN(600)) * time.Second,
		})
	case roll < newTrouble:
		one := c.disturbances[c.dice.IntN(len(c.disturbances))]
		if _, is := there[one.name]; is {
			return
		}

		// The duration has a logarithmic distribution.
		stay := time.Duration(float64(minStay) * math.Pow(float64(maxStay/minStay), c.dice.Float64()))
		there[one.name] = activeDisturbance{one.name, c.clock.Now().Add(stay), one.begin(c.Fleet, c.dice)}
		c.started++
	case roll < switchedOff:
		c.powerOffMachine()
	case roll < deleted:
		c.deleteClaim(c.T.Context())
	case roll < restarted:
		if _, isFlaky := there[flakyName]; isFlaky {
			return // the operator would fail to start without a kubelet that restarts it
		}

		c.Stop()
		c.Start()
		c.restarts++
	}
}

// powerOffMachine powers off a random machine.
func (c *chaos) powerOffMachine() {
	made := c.PVE.Snapshot().CreatedVMs()
	if len(made) == 0 {
		return
	}

	c.PVE.PowerOff(made[c.dice.IntN(len(made))].VMID)
	c.oracle.killed++
}

// deleteClaim deletes a random claim, as a user would.
func (c *chaos) deleteClaim(ctx context.Context) {
	var claims v1alpha1.MachineClaimList

	err := c.Client.List(ctx, &claims, client.InNamespace(c.Namespace))
	if err != nil || len(claims.Items) == 0 {
		return
	}

	claim := &claims.Items[c.dice.IntN(len(claims.Items))]
	if err := client.IgnoreNotFound(c.Client.Delete(ctx, claim)); err != nil {
		c.T.Errorf("delete claim %s: %v", claim.Name, err)
	}
}
