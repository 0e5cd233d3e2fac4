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
	amqp "github.com/rabbitmq/amqp091-go"
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

// Letter is an event, and once it is given up, why.
type Letter struct {
	Event cloudevents.Event
	// Tries is how often it was handed out.
	Tries int
	// Reason is poison, exhausted or malformed, Error what the last try said.
	Reason, Error string
}

// dead is what goes to the dead letters: the event, which says the same as the headers do.
func (l Letter) dead(subscription string) (cloudevents.Event, amqp.Table) {
	event := l.Event.Clone()
	header := amqp.Table{
		ExtensionReason: l.Reason, ExtensionError: line(l.Error),
		ExtensionSubscription: subscription, ExtensionDeliveries: strconv.Itoa(max(l.Tries, 1)),
	}

	for name, value := range header {
		if value != "" {
			event.SetExtension(name, value)
		}
	}

	return event, header
}

// bury publishes the dead letter.
func (b *Broker) bury(topic, subscription string, l Letter) error {
	event, header := l.dead(subscription)

	body, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("write dead letter: %w", err)
	}

	// The end of the subscription does not keep a dead letter from its place.
	ctx, cancel := context.WithTimeout(b.life, publishTries*publishTimeout)
	defer cancel()

	return b.send(ctx, topic+DeadLetterSuffix, amqp.Publishing{
		MessageId: "dead/" + subscription + "/" + event.Source() + "/" + event.ID(), Headers: header, Body: body,
	})
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
