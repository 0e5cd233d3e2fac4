// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"
)

// DeadLetterSuffix makes the topic of dead letters of a topic's name.
const DeadLetterSuffix = ".dead-letter"

// What a dead letter carries beside the event, as headers of the broker and as extensions
// of the event.
const (
	// ExtensionReason is poison, exhausted or malformed.
	ExtensionReason = "deadletterreason"
	// ExtensionError is what the last try said.
	ExtensionError = "deadlettererror"
	// ExtensionSubscription is whose handler gave up.
	ExtensionSubscription = "deadlettersubscription"
	// ExtensionDeliveries is how often the event was tried.
	ExtensionDeliveries = "deadletterdeliveries"
)

// Reasons of dead letters.
const (
	// reasonPoison: the handler said that no further try fixes it.
	reasonPoison = "poison"
	// ReasonExhausted: it was tried MaxDeliveries times.
	ReasonExhausted = "exhausted"
	// reasonMalformed: it is no CloudEvent. The dead letter is one of type
	// TypeMalformed with what came as its data.
	reasonMalformed = "malformed"
)

// TypeMalformed is the type of dead letters that came as something else than events.
const TypeMalformed = "io.hyperfleet.malformed"

const (
	maxErrorText = 512
	maxForeign   = 64 << 10
)

var errPanic = errors.New("handler panicked")

// poison marks an error that no further try fixes.
type poison struct{ error }

// Unwrap gives the error itself.
func (p poison) Unwrap() error { return p.error }

// Poison marks a handler's error: the event goes to the dead letters at once. Nil stays
// nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}

	return poison{err}
}

// IsPoison says whether an error, or one that it wraps, was marked with Poison.
func IsPoison(err error) bool {
	_, ok := errors.AsType[poison](err)

	return ok
}

// doom is why an event goes to the dead letters.
type doom struct{ reason, text string }

// judge says whether a failed event is given up; nil for another try. Dead letters that
// nobody can handle stay what they are.
func (l *lanes) judge(one *item, err error) *doom {
	switch {
	case strings.HasSuffix(l.topic, DeadLetterSuffix):
		return nil
	case IsPoison(err):
		return &doom{reason: reasonPoison, text: err.Error()}
	case one.tries >= l.broker.conf.MaxDeliveries:
		return &doom{reason: ReasonExhausted, text: err.Error()}
	default:
		return nil
	}
}

// bury publishes the dead letter.
func (l *lanes) bury(one *item) error {
	if strings.HasSuffix(l.topic, DeadLetterSuffix) {
		l.log.Error("drop a dead letter that is no event", "reason", one.doomed.reason)

		return nil
	}

	header := map[string]string{
		ExtensionReason: one.doomed.reason, ExtensionError: line(one.doomed.text),
		ExtensionSubscription: l.subscription, ExtensionDeliveries: strconv.Itoa(max(one.tries, 1)),
	}
	event := one.event.Clone()

	for name, value := range header {
		if value != "" {
			event.SetExtension(name, value)
		}
	}

	body, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("write dead letter: %w", err)
	}

	m := message{
		id:     "dead/" + l.subscription + "/" + event.Source() + "/" + event.ID(),
		header: header, body: body,
	}

	// The end of the subscription does not keep a dead letter from its place.
	ctx, cancel := context.WithTimeout(l.broker.hard, publishTries*publishTimeout)
	defer cancel()

	if err := l.broker.send(ctx, l.topic+DeadLetterSuffix, m); err != nil {
		return err
	}

	l.broker.metrics.deadLetters.WithLabelValues(l.topic, l.subscription, one.doomed.reason).Inc()
	l.log.Error("event went to the dead letters", "event", event.ID(), "key", keyOf(event),
		"reason", one.doomed.reason, "tries", one.tries, "error", line(one.doomed.text))

	return nil
}

// malformed wraps what is no event.
func malformed(body []byte) cloudevents.Event {
	event := cloudevents.NewEvent()
	event.SetID(uuid.NewSHA1(uuid.NameSpaceOID, body).String())
	event.SetSource("hyperfleet-broker")
	event.SetType(TypeMalformed)

	// Bytes are always taken.
	_ = event.SetData("application/octet-stream", body[:min(len(body), maxForeign)])

	return event
}

// line makes one bounded line of an error's text, of characters that a CloudEvents
// attribute may have.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f {
			return ' '
		}

		return r
	}, text)

	return text[:min(len(text), maxErrorText)]
}
