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

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	// probeLabel is the label of the probe script.
	probeLabel = "probe"
	// DefaultProbeTimeout is the default timeout of a probe, which only reads.
	DefaultProbeTimeout = 2 * time.Minute
)

// Options are the options of a push. Zero values stand for the defaults.
type Options struct {
	// Timeout of each part. Default: [ssh.DefaultTimeout].
	Timeout time.Duration
	// ProbeTimeout is the timeout of the probe of all parts. Default: [DefaultProbeTimeout].
	ProbeTimeout time.Duration
	// Concurrent lets a probe run at the same time as another script on the host, for example a
	// push. See [ssh.Script].
	Concurrent bool
	// OnStart and OnEnd are called for each part that is pushed. They may be nil.
	OnStart func(label string)
	OnEnd   func(part Part)
}

// Outcome is the outcome of a part.
type Outcome string

const (
	// Applied means that the part's script succeeded and the host has the part.
	Applied Outcome = "applied"
	// Unchanged means that the part did not have to be applied.
	Unchanged Outcome = "unchanged"
	// Failed means that the part's script failed, or that the host does not have the part although
	// the script succeeded. The part may have been applied partially and must be applied again.
	Failed Outcome = "failed"
	// NotReached means that the part was not applied because an earlier part failed.
	NotReached Outcome = "not-reached"
)

// Part is the result of one part.
type Part struct {
	Label   string
	Outcome Outcome
	// Err is the error of a failed part. [ssh.KindOf] returns its kind.
	Err error
}

// Result is the result of a push, with all parts of the plan in order.
type Result struct {
	Parts []Part
	// LostParts are the parts that the probe reported as lost, whether or not this push applied
	// them. It is empty if the probe failed.
	LostParts []string
	// Err is the error of the failed part, or of the probe, without which the state of the host is
	// unknown. If Err is nil, every part that had to be applied is applied.
	Err error
}

// Labels returns the labels of the parts with an outcome, in order.
func (r Result) Labels(outcome Outcome) []string {
	var out []string

	for _, part := range r.Parts {
		if part.Outcome == outcome {
			out = append(out, part.Label)
		}
	}

	return out
}

// Apply applies the steps of a plan in order and stops at the first that fails. Then it verifies the host, also
// after a failure. The result has all parts of the plan. Without steps, Apply calls nothing.
func Apply(ctx context.Context, conn *ssh.Conn, p plan.Plan, steps []plan.Part, options Options) Result {
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
		part := applyPart(ctx, conn, step, planSecrets(p), options)
		setPart(&result, part)

		if part.Err != nil {
			result.Err = fmt.Errorf("push %s: %w", part.Label, part.Err)

			break
		}
	}

	verify(ctx, conn, p, options, &result)

	return result
}

// applyPart runs the script of one part and returns its result. The secrets are redacted in its error.
func applyPart(ctx context.Context, conn *ssh.Conn, step plan.Part, secrets []log.Secret, options Options) Part {
	if options.OnStart != nil {
		options.OnStart(step.Label)
	}

	_, err := conn.Run(ctx, ssh.Script{
		Label: step.Label, Input: strings.NewReader(step.Input()),
		Timeout: options.Timeout, Secrets: secrets,
	})

	part := Part{Label: step.Label, Outcome: Applied, Err: err}
	if err != nil {
		part.Outcome = Failed
	}

	if options.OnEnd != nil {
		options.OnEnd(part)
	}

	return part
}

// Probe returns the state of each hashed part on the host.
func Probe(ctx context.Context, conn *ssh.Conn, p plan.Plan, options Options) (map[string]plan.State, error) {
	out, err := conn.Run(ctx, ssh.Script{
		Label: probeLabel, Input: strings.NewReader(p.ProbeScript()),
		Timeout:    cmp.Or(options.ProbeTimeout, DefaultProbeTimeout),
		Concurrent: options.Concurrent,
		Secrets:    planSecrets(p),
	})
	if err != nil {
		return nil, err
	}

	return p.ParseProbe(strings.NewReader(out.Stdout))
}

func planSecrets(p plan.Plan) []log.Secret {
	var out []log.Secret

	for _, part := range p.Parts() {
		if !part.Secret.IsEmpty() {
			out = append(out, part.Secret)
		}
	}

	return out
}

func setPart(r *Result, part Part) {
	for i := range r.Parts {
		if r.Parts[i].Label == part.Label {
			r.Parts[i] = part
		}
	}
}

// verify probes the host to check that the applied parts are there. It does not probe a host that
// is unreachable or that timed out.
func verify(ctx context.Context, conn *ssh.Conn, p plan.Plan, options Options, r *Result) {
	if kind := ssh.KindOf(r.Err); r.Err != nil && kind != ssh.Rejected {
		return
	}

	// The script of this push has ended. If another client has stopped it, that client's script is
	// running and must not be stopped.
	options.Concurrent = true

	states, err := Probe(ctx, conn, p, options)
	if err != nil {
		r.Err = errors.Join(r.Err, fmt.Errorf("probe after push: %w", err))

		return
	}

	r.LostParts = p.LostParts(states)

	for i, part := range r.Parts {
		if part.Outcome != Applied || states[part.Label] != plan.Lost {
			continue
		}

		err := &ssh.Error{
			Kind: ssh.VerificationFailed, Reason: string(ssh.VerificationFailed),
			Message: part.Label + " was applied without an error, but the host's probe reports it as lost",
		}
		r.Parts[i].Outcome, r.Parts[i].Err = Failed, err
		r.Err = errors.Join(r.Err, fmt.Errorf("push %s: %w", part.Label, err))
	}
}
