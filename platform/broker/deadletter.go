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

// DeadLetterSuffix is appended to the name of a topic for the topic of its dead letters.
const DeadLetterSuffix = ".dead-letter"

// Attributes that a dead letter has in addition to the event's, as message headers and as
// extensions of the event.
const (
	// ExtensionReason is poison, exhausted or malformed.
	ExtensionReason = "deadletterreason"
	// ExtensionError is the error of the last attempt.
	ExtensionError = "deadlettererror"
	// ExtensionSubscription is the subscription whose handler gave up.
	ExtensionSubscription = "deadlettersubscription"
	// ExtensionDeliveries is the number of attempts.
	ExtensionDeliveries = "deadletterdeliveries"
)

// Reasons of dead letters.
const (
	// reasonPoison means that the handler marked its error as terminal.
	reasonPoison = "poison"
	// ReasonExhausted means that MaxDeliveries attempts failed.
	ReasonExhausted = "exhausted"
	// reasonMalformed means that the message is not a CloudEvent. The dead letter has the type
	// TypeMalformed and the message as its data.
	reasonMalformed = "malformed"
)

// TypeMalformed is the type of dead letters for messages that are not events.
const TypeMalformed = "io.hyperfleet.malformed"

const (
	maxErrorText     = 512
	maxMalformedSize = 64 << 10
)

var errPanic = errors.New("handler panicked")

// poison marks a terminal error.
type poison struct{ error }

// Unwrap returns the marked error.
func (p poison) Unwrap() error { return p.error }

// Poison marks an error of a handler as terminal, so that the event becomes a dead letter
// immediately. Poison returns nil if err is nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}

	return poison{err}
}

// IsPoison returns true if the error, or an error that it wraps, was marked with Poison.
func IsPoison(err error) bool {
	_, ok := errors.AsType[poison](err)

	return ok
}

// Letter is an event. An event that was given up is a dead letter, and has the reason.
type Letter struct {
	Event cloudevents.Event
	// Attempts is how often the event was passed to a handler.
	Attempts int
	// Reason is poison, exhausted or malformed. Error is the error of the last attempt.
	Reason, Error string
}

// toDeadLetter returns the event of the dead letter, and message headers with the same values as
// the event's extensions.
func (l Letter) toDeadLetter(subscription string) (cloudevents.Event, amqp.Table) {
	event := l.Event.Clone()
	header := amqp.Table{
		ExtensionReason: l.Reason, ExtensionError: sanitizeLine(l.Error),
		ExtensionSubscription: subscription, ExtensionDeliveries: strconv.Itoa(max(l.Attempts, 1)),
	}

	for name, value := range header {
		if value != "" {
			event.SetExtension(name, value)
		}
	}

	return event, header
}

func (b *Broker) publishDeadLetter(ctx context.Context, topic, subscription string, l Letter) error {
	event, header := l.toDeadLetter(subscription)

	body, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("encode dead letter: %w", err)
	}

	return b.publishWithRetry(ctx, topic+DeadLetterSuffix, amqp.Publishing{
		MessageId: "dead/" + subscription + "/" + event.Source() + "/" + event.ID(), Headers: header, Body: body,
	})
}

// newMalformedEvent returns an event with a message that is not an event as its data.
func newMalformedEvent(body []byte) cloudevents.Event {
	event := cloudevents.NewEvent()
	event.SetID(uuid.NewSHA1(uuid.NameSpaceOID, body).String())
	event.SetSource("hyperfleet-broker")
	event.SetType(TypeMalformed)

	// SetData accepts any bytes.
	_ = event.SetData("application/octet-stream", body[:min(len(body), maxMalformedSize)])

	return event
}

// sanitizeLine cuts the text of an error to maxErrorText bytes, and replaces characters that a
// CloudEvents attribute must not have with spaces.
func sanitizeLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f {
			return ' '
		}

		return r
	}, text)

	return text[:min(len(text), maxErrorText)]
}
