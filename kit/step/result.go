// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Limits of metav1.Condition.
const (
	maxReason  = 1024
	maxMessage = 32768
)

const (
	outcomeDone      = "done"
	outcomeWait      = "waiting"
	outcomeStall     = "stalled"
	outcomeFail      = "failed"
	outcomeWaitReady = "ready"
)

var errNoCause = errors.New("step failed without an error")

// Result is the outcome of a step. The zero Result is invalid and counts as a failure.
type Result struct {
	outcome      string
	requeueAfter time.Duration
	reason       string
	message      string
	err          error
	conditions   []metav1.Condition
	// writeDelay is how long the status changes of this run may stay in memory. If it is 0, they are written at
	// the end of the run.
	writeDelay time.Duration
	// extendsDelay is true if shorter limits of earlier runs no longer hold.
	extendsDelay bool
}

// Done returns the result of a step that has nothing left to do. The next step runs.
func Done() Result { return Result{outcome: outcomeDone, reason: "Done"} }

// Wait returns the result of a step that is in progress. The object is requeued after the given
// time, and reconciled earlier if an event arrives. If after <= 0, the object is reconciled only on
// an event. The reason is one CamelCase word.
func Wait(after time.Duration, reason, message string) Result {
	return Result{outcome: outcomeWait, requeueAfter: max(after, 0), reason: reason, message: message}
}

// WaitReady returns the result of a step that waits although the object is in its desired state for
// now. The following steps do not run, and Ready is True with the reason and message. (While the
// object is being deleted, Ready is False as after Wait.) The object is requeued after the given
// time, and reconciled earlier if an event arrives. If after <= 0, the object is reconciled only on
// an event.
func WaitReady(after time.Duration, reason, message string) Result {
	return Result{outcome: outcomeWaitReady, requeueAfter: max(after, 0), reason: reason, message: message}
}

// Stall returns the result of a step that cannot continue until a person acts. The object is
// reconciled again on events and after the Resync interval of the Reconciler. The reason is one
// CamelCase word. The message names the object of the problem and the fix.
func Stall(reason, message string) Result {
	return Result{outcome: outcomeStall, reason: reason, message: message}
}

// quotaRetry is how long a step waits after a ResourceQuota rejected an object, because there is no event when
// the quota has room again.
const quotaRetry = 30 * time.Second

// Fail returns the result of a step that failed. The object is reconciled again with the
// controller's back-off. The condition's reason and the error class are those of err (see
// kit/errclass). The text of err becomes the condition's message, so it must not contain a secret.
// A nil err counts as a failure, too. If a ResourceQuota is used up, the step waits instead, because
// the back-off grows to a quarter of an hour.
func Fail(err error) Result {
	if err == nil {
		err = errNoCause
	}

	out := Result{outcome: outcomeFail, reason: errclass.ReasonOf(err, "Failed"), message: err.Error(), err: err}
	if errclass.IsOverQuota(err) {
		out.outcome, out.requeueAfter = outcomeWait, quotaRetry
	}

	return out
}

// WithRetryAfter returns the failed or stalled result with a fixed retry delay. It replaces the controller's back-off, or the
// Resync interval if it is shorter. WithRetryAfter returns all other results unchanged.
func (r Result) WithRetryAfter(delay time.Duration) Result {
	if r.IsFailed() || r.IsStalled() {
		r.requeueAfter = delay
	}

	return r
}

// FromError converts an error into the result for its class: Fail for Transient, Stall for Permanent
// and Configuration, and Wait for Resource, with the given time. If a ResourceQuota is used up, the step waits as after
// Fail.
func FromError(err error, wait time.Duration) Result {
	class := errclass.ClassOf(err)
	result := Fail(err)

	switch class {
	case errclass.Permanent, errclass.Configuration:
		result.outcome = outcomeStall
	case errclass.Resource:
		result.outcome, result.requeueAfter = outcomeWait, ChooseSooner(wait, result.requeueAfter)
	case errclass.Transient:
	}

	return result
}

// WithReason returns the result with another reason and message, for example for a done step whose
// condition should say more than "Done".
func (r Result) WithReason(reason, message string) Result {
	r.reason, r.message = reason, message

	return r
}

// DeferWrite returns the result with the permission to keep the status changes of this run in memory
// for up to five seconds, so that one patch writes them together with later changes. If more than 50 objects of
// the controller change at the same time, they stay for up to 50 seconds. Use it for
// short-lived progress and for facts that the next run can observe again. Conditions are logged only
// after they are written. A run that registered a callback with OnSaved or OnTransition is written
// immediately.
func (r Result) DeferWrite() Result { return r.DeferWriteFor(defaultWriteDelay) }

// DeferWriteFor is DeferWrite with another limit. A shorter limit of an earlier run that is not written yet holds,
// too. While many objects change at the same time, the changes may stay longer, as after DeferWrite. The limit must be shorter
// than a minute, because the state of an object is kept in memory for that long.
func (r Result) DeferWriteFor(limit time.Duration) Result {
	r.writeDelay = limit

	return r
}

// DeferWriteAtEnd is like DeferWriteFor with ProgressWriteDelay, but it also replaces a shorter limit of an earlier run.
// Use it when the machine or the job of the object has ended, because then nobody waits for the progress that earlier
// runs have observed.
func (r Result) DeferWriteAtEnd() Result {
	r.extendsDelay = true

	return r.DeferWriteFor(ProgressWriteDelay)
}

// WithCondition returns the result with one more condition to report in addition to the step's own.
// Use it for facts that do not stop the list: a warning, or a documented condition of opposite
// polarity. The condition does not affect Ready.
func (r Result) WithCondition(condition string, status metav1.ConditionStatus, reason, message string) Result {
	r.conditions = append(r.conditions[:len(r.conditions):len(r.conditions)], metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: message,
	})

	return r
}

// ChooseSooner returns the shorter of two delays, such as those of requeues. A delay of 0 means never.
func ChooseSooner(a, b time.Duration) time.Duration {
	if a <= 0 || b <= 0 {
		return max(a, b, 0)
	}

	return min(a, b)
}

// IsDone returns whether the step is done.
func (r Result) IsDone() bool { return r.outcome == outcomeDone }

// IsStalled returns whether a person has to act.
func (r Result) IsStalled() bool { return r.outcome == outcomeStall }

// IsFailed returns whether the step failed and the object is reconciled again with back-off.
func (r Result) IsFailed() bool { return r.outcome == outcomeFail }

// RequeueAfter returns the time after which the object is reconciled again without an event. It
// returns 0 if the result has no such time.
func (r Result) RequeueAfter() time.Duration { return r.requeueAfter }

// Reason returns the reason of the step's condition.
func (r Result) Reason() string { return sanitizeReason(r.reason) }

// Message returns the message of the step's condition.
func (r Result) Message() string { return r.message }

// String formats the outcome, reason and message for logs and test output.
func (r Result) String() string {
	text := r.outcome
	if text == "" {
		text = "nothing"
	}

	if r.reason != "" {
		text += " " + r.reason
	}

	if r.message != "" {
		text += ": " + r.message
	}

	return text
}

func (r Result) errorClass() string {
	if r.err == nil {
		return "none"
	}

	return string(errclass.ClassOf(r.err))
}

// sanitizeReason converts any text into a reason that the API server accepts. It keeps only the
// letters and digits of ASCII, makes the first letter of each word upper case, and cuts the result
// at 1024 bytes. It returns "Unspecified" if no letter is left.
func sanitizeReason(reason string) string {
	isWordStart := true

	kept := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z':
			if isWordStart {
				c -= 'a' - 'A'
			}

			isWordStart = false

			return c
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			isWordStart = false

			return c
		default:
			isWordStart = true

			return -1
		}
	}, reason)
	kept = strings.TrimLeft(kept, "0123456789")

	if kept == "" {
		return "Unspecified"
	}

	if c := kept[0]; c >= 'a' && c <= 'z' {
		kept = string(c-'a'+'A') + kept[1:]
	}

	return kept[:min(len(kept), maxReason)]
}

// sanitizeMessage converts any text into a message that the API server accepts: valid UTF-8 of at
// most 32768 bytes, cut between characters. It removes the characters with which a text from another system could
// control a terminal or hide a part of the message.
func sanitizeMessage(message string) string {
	message = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' || unicode.Is(unicode.Bidi_Control, c) {
			return -1
		}

		return c
	}, strings.ToValidUTF8(message, "?"))
	if len(message) <= maxMessage {
		return message
	}

	const more = "..."

	cut := maxMessage - len(more)
	for cut > 0 && !utf8.RuneStart(message[cut]) {
		cut--
	}

	return message[:cut] + more
}
