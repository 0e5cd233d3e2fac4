// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	// probeLabel names the probe among scripts.
	probeLabel = "probe"
	// DefaultProbeTimeout is how long a probe may take: it reads alone.
	DefaultProbeTimeout = 2 * time.Minute
)

// Host is where scripts run; [ssh.Conn] is one.
type Host interface {
	Run(ctx context.Context, script ssh.Script) (ssh.Output, error)
}

// Options of a push; zero values are what is usual.
type Options struct {
	// Timeout of each part; [ssh.DefaultTimeout] if zero.
	Timeout time.Duration
	// ProbeTimeout of the probe of all parts; [DefaultProbeTimeout] if zero.
	ProbeTimeout time.Duration
	// Beside has a probe run beside what else runs at the host, such as a push; see [ssh.Script].
	Beside bool
	// Clock tells how long parts took.
	Clock clock.PassiveClock
	// Started and Ended hear of each part that is run; may be nil.
	Started func(label string)
	Ended   func(part Part)
}

// Outcome is what became of a part.
type Outcome string

const (
	// Applied is a part whose script ended well and that the host has now.
	Applied Outcome = "applied"
	// Unchanged is a part that was not to be applied.
	Unchanged Outcome = "unchanged"
	// Failed is a part whose script did not end well, or that the host has not all the same.
	// It may be there in part: it has to be applied again.
	Failed Outcome = "failed"
	// NotReached is a part that was to be applied after one that failed.
	NotReached Outcome = "not-reached"
)

// Part is what became of a part.
type Part struct {
	Label   string
	Outcome Outcome
	// Err of one that failed; [ssh.KindOf] gives its kind.
	Err error
	// Took is how long its script ran.
	Took time.Duration
}

// Result is what became of all parts of a plan, in its order.
type Result struct {
	Parts []Part
	// Lost are the parts that the host does not have by its probe, applied now or not. It is
	// empty where the host could not be asked.
	Lost []string
	// Err is why not all is done: that of the part that failed, or of the probe, without
	// which nobody knows. Without an error each part that was to be applied is applied.
	Err error
}

// Labels gives the labels of parts with an outcome, in order.
func (r Result) Labels(outcome Outcome) []string {
	var out []string

	for _, part := range r.Parts {
		if part.Outcome == outcome {
			out = append(out, part.Label)
		}
	}

	return out
}

// FirstBoot brings all parts to a new host.
func FirstBoot(ctx context.Context, host Host, p plan.Plan, options Options) Result {
	return run(ctx, host, p, p.FirstBootSteps(), options)
}

// Drift brings these parts and those that have to follow to a host that is not new; parts
// of the first boot never.
func Drift(ctx context.Context, host Host, p plan.Plan, drifted []string, options Options) Result {
	return run(ctx, host, p, p.DriftSteps(drifted...), options)
}

// Drifted names the parts of the plan that a host has to get: those whose digest is not the
// one that it got last, and those that it has lost; either may be nil. Without any digests
// nothing is known of the host and all parts that are always applied have drifted.
func Drifted(p plan.Plan, has []plan.Digest, states map[string]plan.State) []string {
	stale := map[string]bool{}
	for _, change := range plan.Diff(p.Digests(), has) {
		stale[change.Label] = true
	}

	var out []string

	for _, part := range p.Parts() {
		if part.Hashed() && (stale[part.Label] || states[part.Label] == plan.Lost) {
			out = append(out, part.Label)
		}
	}

	return out
}

// Probe asks the host which parts it has as it should.
func Probe(ctx context.Context, host Host, p plan.Plan, options Options) (map[string]plan.State, error) {
	out, err := host.Run(ctx, ssh.Script{
		Label: probeLabel, Input: strings.NewReader(p.ProbeScript()),
		Timeout: cmp.Or(options.ProbeTimeout, DefaultProbeTimeout),
		Beside:  options.Beside,
		Secrets: secrets(p),
	})
	if err != nil {
		return nil, err
	}

	return p.ReadProbe(strings.NewReader(out.Stdout))
}

func secrets(p plan.Plan) []log.Secret {
	var out []log.Secret

	for _, part := range p.Parts() {
		if !part.Secret.Empty() {
			out = append(out, part.Secret)
		}
	}

	return out
}

func run(ctx context.Context, host Host, p plan.Plan, steps []plan.Part, options Options) Result {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	var result Result

	for _, part := range p.Parts() {
		outcome := Unchanged
		if slices.ContainsFunc(steps, func(s plan.Part) bool { return s.Label == part.Label }) {
			outcome = NotReached
		}

		result.Parts = append(result.Parts, Part{Label: part.Label, Outcome: outcome})
	}

	if len(steps) == 0 {
		return result
	}

	for _, step := range steps {
		part := apply(ctx, host, step, secrets(p), options)
		set(&result, part)

		if part.Err != nil {
			result.Err = fmt.Errorf("push %s: %w", part.Label, part.Err)

			break
		}
	}

	verify(ctx, host, p, options, &result)

	return result
}

func apply(ctx context.Context, host Host, step plan.Part, hidden []log.Secret, options Options) Part {
	if options.Started != nil {
		options.Started(step.Label)
	}

	start := options.Clock.Now()
	_, err := host.Run(ctx, ssh.Script{
		Label: step.Label, Input: strings.NewReader(step.Input()),
		Timeout: options.Timeout, Secrets: hidden,
	})

	part := Part{Label: step.Label, Outcome: Applied, Err: err, Took: options.Clock.Since(start)}
	if err != nil {
		part.Outcome = Failed
	}

	if options.Ended != nil {
		options.Ended(part)
	}

	return part
}

func set(r *Result, part Part) {
	for i := range r.Parts {
		if r.Parts[i].Label == part.Label {
			r.Parts[i] = part
		}
	}
}

// verify asks the host whether what was applied is there. A host that is gone or hangs is
// not asked once more.
func verify(ctx context.Context, host Host, p plan.Plan, options Options, r *Result) {
	if kind := ssh.KindOf(r.Err); r.Err != nil && kind != ssh.Rejected {
		return
	}

	// What this push ran has ended. If somebody else's script has ended it, that one runs on.
	options.Beside = true

	states, err := Probe(ctx, host, p, options)
	if err != nil {
		r.Err = errors.Join(r.Err, fmt.Errorf("probe after push: %w", err))

		return
	}

	r.Lost = p.LostParts(states)

	for i, part := range r.Parts {
		if part.Outcome != Applied || states[part.Label] != plan.Lost {
			continue
		}

		err := &ssh.Error{
			Kind: ssh.NotKept, Reason: string(ssh.NotKept),
			Message: part.Label + " was applied without an error, and the host's probe does not find it as it should be",
		}
		r.Parts[i].Outcome, r.Parts[i].Err = Failed, err
		r.Err = errors.Join(r.Err, fmt.Errorf("push %s: %w", part.Label, err))
	}
}
