// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/hyperfleet/hyperfleet/api/events"
)

const (
	tracerName = "github.com/hyperfleet/hyperfleet/platform/sentinel"

	sendTimeout = 30 * time.Second
	minBackoff  = time.Second
	maxBackoff  = 30 * time.Second
)

// runPublisher sends the events of the queue in order, with sendCtx. After ctx has ended, it drops the rest of
// the queue.
func (s *Sentinel) runPublisher(ctx, sendCtx context.Context) {
	for {
		id, isShutDown := s.queue.Get()
		if isShutDown {
			return
		}

		if ctx.Err() == nil {
			if event := s.prepareEvent(id); event != nil {
				s.publish(sendCtx, event)
			}
		}

		s.queue.Done(id)
	}
}

// preparedEvent is an event that is to be sent, with the entry and the generation of its resource.
type preparedEvent struct {
	cloudevents.Event

	entry      *entry
	generation int32
	reason     string
}

// prepareEvent creates the event of a resource from its current state. It returns nil if none is due any longer.
func (s *Sentinel) prepareEvent(id string) *preparedEvent {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()

	e := s.index.entries[id]
	if e == nil {
		return nil
	}

	e.isQueued = false

	if !s.lease.IsHeld() {
		s.metrics.skipped.WithLabelValues(skippedStandby).Inc()

		return nil
	}

	reason, ok := s.evaluate(e, s.clock.Now())
	if !ok {
		e.failures, e.retryTime = 0, time.Time{}

		return nil
	}

	created, err := s.newEvent(e, reason)
	if err != nil {
		s.metrics.expressionErrors.Inc()
		s.log.Error("could not create the event: send none", "id", id, "error", err)

		return nil
	}

	e.isSending = true

	return &preparedEvent{Event: *created, entry: e, generation: e.generation, reason: reason}
}

// newEvent creates the event of a resource.
func (s *Sentinel) newEvent(e *entry, reason string) (*cloudevents.Event, error) {
	fields, err := s.data.build(context.Background(), e, reason)
	if err != nil {
		return nil, err
	}

	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("create ID: %w", err)
	}

	event := cloudevents.NewEvent()
	event.SetID(id.String())
	event.SetSource(events.Source)
	event.SetType(events.TypePrefix + strings.ToLower(e.kind.Value()) + events.TypeSuffix)
	event.SetTime(s.clock.Now())
	event.SetSubject(e.id)
	event.SetExtension(events.PartitionKey, e.id)

	if err := event.SetData(events.ContentType, fields); err != nil {
		return nil, fmt.Errorf("encode data: %w", err)
	}

	return &event, nil
}

// publish sends an event to the broker. Adapters and their calls continue the trace of its span. If
// the broker does not accept the event, it is retried later, and events of other resources are
// still sent.
func (s *Sentinel) publish(ctx context.Context, event *preparedEvent) {
	id, reason, generation := event.Subject(), event.reason, event.generation

	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()

	ctx, span := otel.Tracer(tracerName).Start(ctx, "send event", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("messaging.destination.name", s.topic), attribute.String("messaging.message.id", event.ID()),
		attribute.String("hyperfleet.resource.id", id), attribute.String("hyperfleet.resource.type", s.conf.ResourceType),
		attribute.Int64("hyperfleet.generation", int64(generation)), attribute.String("hyperfleet.reason", reason),
	))
	defer span.End()

	parent := newTraceContext(span.SpanContext())
	event.SetExtension(events.ExtensionTraceParent, formatTraceParent(parent))
	log := s.log.With("id", id, "reason", reason, "traceId", parent.TraceID().String())

	err := s.broker.Publish(ctx, s.topic, event.Event)
	if err != nil {
		s.metrics.brokerErrors.WithLabelValues(errorPublish).Inc()
		log.Error("could not send event", "error", err)
		// The span gets no error text, because it can contain the broker's address.
		span.SetStatus(codes.Error, errorPublish)
	} else {
		s.metrics.published.WithLabelValues(reason).Inc()
		log.Debug("event sent", "generation", generation, "event", event.ID())
	}

	if s.recordResult(event, err == nil) {
		s.enqueueDue(id)
	}
}

// newTraceContext returns the trace context for an event. It is the context of the span that sends
// the event, sampled or not. If tracing is off, it is a new context, with which the log lines about
// the event can be found. The new context is marked as sampled, so that a later program can decide.
func newTraceContext(span trace.SpanContext) trace.SpanContext {
	if span.IsValid() {
		return span
	}

	var (
		traceID trace.TraceID
		spanID  trace.SpanID
	)

	// crypto/rand never returns an error.
	_, _ = rand.Read(traceID[:])
	_, _ = rand.Read(spanID[:])

	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled})
}

// formatTraceParent formats a context as a W3C traceparent.
func formatTraceParent(span trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)

	return carrier["traceparent"]
}

// recordResult records whether an event was sent. After a failure it schedules the next attempt. It
// returns true if the resource has to be evaluated again.
func (s *Sentinel) recordResult(event *preparedEvent, isSent bool) bool {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()

	// The resource may have been removed or restored in the meantime.
	e := event.entry
	if s.index.entries[e.id] != e {
		return false
	}

	needsRecheck := e.needsRecheck
	e.isSending, e.needsRecheck = false, false
	now := s.clock.Now()

	if isSent {
		e.sentGeneration, e.sentTime, e.isRestored = event.generation, now, false
		e.failures, e.retryTime = 0, time.Time{}

		return needsRecheck
	}

	const maxShift = 10

	wait := min(minBackoff<<min(e.failures, maxShift), maxBackoff)
	e.failures++
	e.retryTime = now.Add(wait)
	s.clock.AfterFunc(wait, func() { s.enqueueDue(e.id) })

	return false
}
