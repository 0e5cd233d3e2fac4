// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Tone is the meaning of a state that views show with a color. The values are the names of CSS classes.
type Tone string

// Tones. A busy object is between two states, and a quiet object is completed without success or failure.
const (
	ToneGood  Tone = "good"
	ToneWait  Tone = "wait"
	ToneBusy  Tone = "busy"
	ToneBad   Tone = "bad"
	ToneQuiet Tone = "quiet"
)

// StateTone returns the tone of the state of a job with a conclusion, or of the phase of a machine or a host.
func StateTone(state, conclusion string) Tone {
	switch {
	case state == string(v1alpha1.JobCompleted) && IsFailure(conclusion), state == "Failed":
		return ToneBad
	case state == string(v1alpha1.JobCompleted) && slices.Contains([]string{"success", "passed"}, conclusion):
		return ToneGood
	case state == string(v1alpha1.JobCompleted):
		return ToneQuiet
	case slices.Contains([]string{string(v1alpha1.JobQueued), string(v1alpha1.JobWaiting), "Pending", ""}, state):
		return ToneWait
	case state == string(v1alpha1.JobRunning), state == "Ready":
		return ToneGood
	default:
		return ToneBusy
	}
}

// Tone returns the tone of the condition.
func (r Ready) Tone() Tone {
	switch r.Status {
	case metav1.ConditionTrue:
		return ToneGood
	case metav1.ConditionFalse:
		return ToneBad
	default:
		return ToneWait
	}
}

// State returns Ready, or the reason why the object is not ready.
func (r Ready) State() string {
	if r.Status == metav1.ConditionTrue {
		return StateReady
	}

	return r.Reason
}

// Names of states that are not phases or reasons.
const (
	StateReady    = "Ready"
	StateNotReady = "NotReady"
	StatePaused   = "Paused"
	StateFailed   = "Failed"
	StateEnding   = "Ending"
	StateStandby  = "Standby"
	StateBusy     = "Busy"
	StateIdle     = "Idle"
	StateStarting = "Starting"
)

// State returns Paused, Ready, or the reason why the pool is not ready.
func (p Pool) State() string {
	if p.Spec.Paused {
		return StatePaused
	}

	return p.Ready.State()
}

// Tone returns the tone of the state of the pool.
func (p Pool) Tone() Tone {
	if p.Spec.Paused {
		return ToneWait
	}

	return p.Ready.Tone()
}

// MachineState returns the state under which Machines counts the machine of a claim.
func MachineState(claim *v1alpha1.MachineClaim) string {
	times := cmp.Or(claim.Status.Times, &v1alpha1.MachineTimes{})

	switch {
	case claim.Status.Phase == v1alpha1.MachineClaimFailed:
		return StateFailed
	case !claim.DeletionTimestamp.IsZero() || times.Ended != nil:
		return StateEnding
	case claim.Spec.Standby:
		return StateStandby
	case times.JobStarted != nil:
		return StateBusy
	case times.Ready != nil:
		return StateIdle
	default:
		return StateStarting
	}
}

// MachineJob returns the name of the RunnerJob that a machine runs or is reserved for.
func MachineJob(claim *v1alpha1.MachineClaim) string {
	if info := claim.Status.BootstrapInfo; info != nil {
		return cmp.Or(info.Job, info.BoundJob)
	}

	return ""
}

// ContainsWords reports whether a text contains every word of a filter. It ignores case.
func ContainsWords(text, filter string) bool {
	text = strings.ToLower(text)

	for word := range strings.FieldsSeq(strings.ToLower(filter)) {
		if !strings.Contains(text, word) {
			return false
		}
	}

	return true
}
