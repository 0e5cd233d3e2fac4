// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"errors"
	"strings"
	"time"
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
	outcomeDone  = "done"
	outcomeWait  = "wait"
	outcomeStall = "stall"
	outcomeFail  = "fail"
	outcomeRest  = "rest"
)

var errNil = errors.New("step failed without an error")

// Result is what a step came to. The zero Result is a failure: a step has to say
// what it came to.
type Result struct {
	outcome string
	after   time.Duration
	reason  string
	message string
	err     error
	also    []metav1.Condition
	// unhurried says that the outcome may be written later.
	unhurried bool
}

// Done says that the step has nothing left to do; the next one may run.
func Done() Result { return Result{outcome: outcomeDone, reason: "Done"} }

// Wait says that the step is under way. The object is looked at again after the
// given time, or earlier when an event comes; with after <= 0 only on an event.
// The reason is one CamelCase word.
func Wait(after time.Duration, reason, message string) Result {
	return Result{outcome: outcomeWait, after: max(after, 0), reason: reason, message: message}
}

// Steady says that the object is as it should be for now, and that the step waits for the
// world to go on. The steps after it are not run, and Ready is True with the reason and
// message. The object is looked at again after the given time, or earlier when an event
// comes; with after <= 0 only on an event.
func Steady(after time.Duration, reason, message string) Result {
	return Result{outcome: outcomeRest, after: max(after, 0), reason: reason, message: message}
}

// Stall says that a person must act before the step can go on. The object is
// looked at again on events and on the Runner's slow resync. The reason is one
// CamelCase word; the message names the thing and the fix.
func Stall(reason, message string) Result {
	return Result{outcome: outcomeStall, reason: reason, message: message}
}

// Fail says that the step could not do its work; the object is tried again with
// the controller's back-off. Condition reason and error class are those that err
// carries (see kit/errclass). The error's text becomes the condition's message, so
// it must hold no secret.
func Fail(err error) Result {
	if err == nil {
		err = errNil
	}

	return Result{outcome: outcomeFail, reason: errclass.Reason(err, "Failed"), message: err.Error(), err: err}
}

// After gives a failed result its own pause, in place of the controller's back-off. It changes
// no other result.
func (r Result) After(pause time.Duration) Result {
	if r.IsFailed() {
		r.after = pause
	}

	return r
}

// ForError turns an error into the result its class asks for: Transient fails,
// Permanent and Configuration stall, Resource waits for the given time.
func ForError(err error, wait time.Duration) Result {
	class := errclass.Of(err)
	result := Fail(err)

	switch class {
	case errclass.Permanent, errclass.Configuration:
		result.outcome = outcomeStall
	case errclass.Resource:
		result.outcome, result.after = outcomeWait, max(wait, 0)
	case errclass.Transient:
	}

	return result
}

// WithReason gives a result other words: for a done step, more than "Done".
func (r Result) WithReason(reason, message string) Result {
	r.reason, r.message = reason, message

	return r
}

// Unhurried says that what this pass has to write may wait up to five seconds in memory, to
// be written together with what comes next: for progress that passes by, and for facts that
// are found again. Nothing is told before it is written, and a pass that has something to
// tell (OnSaved, OnTransition) is written at once.
func (r Result) Unhurried() Result {
	r.unhurried = true

	return r
}

// Also reports one more condition beside the step's own, for facts that don't stop
// the list: a warning, or a documented condition of opposite polarity. It has no
// influence on Ready.
func (r Result) Also(condition string, status metav1.ConditionStatus, reason, message string) Result {
	r.also = append(r.also[:len(r.also):len(r.also)], metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: message,
	})

	return r
}

// IsDone says whether the step was done.
func (r Result) IsDone() bool { return r.outcome == outcomeDone }

// IsStalled says whether a person has to act.
func (r Result) IsStalled() bool { return r.outcome == outcomeStall }

// IsFailed says whether the step failed and is tried again with back-off.
func (r Result) IsFailed() bool { return r.outcome == outcomeFail }

// Pause is how long the result asks to wait; 0 where it does not say.
func (r Result) Pause() time.Duration { return r.after }

// Reason is the word that the step's condition will have.
func (r Result) Reason() string { return camel(r.reason) }

// Message is the text that the step's condition will have.
func (r Result) Message() string { return r.message }

// String is the result in words, for logs and test output.
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

func (r Result) class() string {
	if r.err == nil {
		return "none"
	}

	return string(errclass.Of(r.err))
}

// camel makes a reason that the API server accepts out of any text: the letters
// and digits of it, beginning with an upper case letter.
func camel(reason string) string {
	upper := true

	kept := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z':
			if upper {
				c -= 'a' - 'A'
			}

			upper = false

			return c
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			upper = false

			return c
		default:
			upper = true

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

// trim makes a message that the API server accepts: valid UTF-8 of at most 32768
// bytes, cut between characters.
func trim(message string) string {
	message = strings.ToValidUTF8(message, "?")
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
