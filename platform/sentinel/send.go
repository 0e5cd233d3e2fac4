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

// consider decides on resources, and puts those in line whose event is due. What it doubts is
// read first.
func (s *Sentinel) consider(ids ...string) {
	if !s.lease.holds() {
		s.meters.skipped.WithLabelValues(skippedStandby).Add(float64(len(ids)))

		return
	}

	for _, id := range ids {
		if s.due(id) {
			s.queue.Add(id)
		}
	}

	select {
	case s.doubts <- struct{}{}:
	default:
	}
}

// due says whether to put a resource in line.
func (s *Sentinel) due(id string) bool {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()

	e, now := s.index.by[id], s.clock.Now()

	switch {
	case e == nil, e.queued:
		return false
	case e.busy:
		e.again = true

		return false
	case now.Before(e.notBefore):
		s.meters.skipped.WithLabelValues(skippedBackoff).Inc()

		return false
	}

	why, ok := s.judge(e, now)
	if ok && s.decide.byReport(e, why) && !s.fresh(e, now) {
		s.index.doubted[id] = true

		return false
	}

	e.queued = ok

	return ok
}

// fresh says that nobody can have reported for long since the resource was read: not because
// of an event of this process, and not for longer than it takes to be looked at again.
func (s *Sentinel) fresh(e *entry, now time.Time) bool {
	return e.asked.After(e.sentTime) && now.Sub(e.answered) < s.conf.PollInterval
}

// judge asks the decision; an expression that fails is no yes. The index's mu is held.
func (s *Sentinel) judge(e *entry, now time.Time) (string, bool) {
	why, err := s.decide.decide(context.Background(), e, now)

	switch {
	case err != nil:
		s.meters.expressions.Inc()
		s.meters.skipped.WithLabelValues(skippedError).Inc()
		s.log.Error("evaluate message_decision: no event", "id", e.id, "error", err)
	case why == "":
		s.meters.skipped.WithLabelValues(skippedFresh).Inc()
	}

	return why, err == nil && why != ""
}

// send sends what is in line, first come, first served, until the end, when what is left is
// left.
func (s *Sentinel) send(ctx context.Context) {
	for {
		id, ended := s.queue.Get()
		if ended {
			return
		}

		if ctx.Err() == nil {
			if event, why, generation := s.draw(id); event != nil {
				s.deliver(id, why, generation, *event)
			}
		}

		s.queue.Done(id)
	}
}

// draw makes the event of what is known now; nil if none is due any more.
func (s *Sentinel) draw(id string) (event *cloudevents.Event, why string, generation int32) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()

	e := s.index.by[id]
	if e == nil {
		return nil, "", 0
	}

	e.queued = false

	if !s.lease.holds() {
		s.meters.skipped.WithLabelValues(skippedStandby).Inc()

		return nil, "", 0
	}

	why, ok := s.judge(e, s.clock.Now())
	if !ok {
		return nil, "", 0
	}

	made, err := s.event(e, why)
	if err != nil {
		s.meters.expressions.Inc()
		s.log.Error("make event: none is sent", "id", id, "error", err)

		return nil, "", 0
	}

	e.busy = true

	return made, why, e.generation
}

// event makes the event of a resource.
func (s *Sentinel) event(e *entry, why string) (*cloudevents.Event, error) {
	said, err := s.data.of(context.Background(), e, why)
	if err != nil {
		return nil, err
	}

	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("make id: %w", err)
	}

	event := cloudevents.NewEvent()
	event.SetID(id.String())
	event.SetSource(events.Source)
	event.SetType(events.TypePrefix + strings.ToLower(e.kind) + events.TypeSuffix)
	event.SetTime(s.clock.Now())
	event.SetSubject(e.id)
	event.SetExtension(events.PartitionKey, e.id)

	if err := event.SetData(events.ContentType, said); err != nil {
		return nil, fmt.Errorf("write data: %w", err)
	}

	return &event, nil
}

// deliver hands the event to the broker, in a span that adapters and their calls go on
// from. One that is not taken is tried again; those of other resources go on.
func (s *Sentinel) deliver(id, why string, generation int32, event cloudevents.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()

	ctx, span := otel.Tracer(tracerName).Start(ctx, "send event", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("messaging.destination.name", s.topic), attribute.String("messaging.message.id", event.ID()),
		attribute.String("hyperfleet.resource.id", id), attribute.String("hyperfleet.resource.type", s.conf.ResourceType),
		attribute.Int64("hyperfleet.generation", int64(generation)), attribute.String("hyperfleet.reason", why),
	))
	defer span.End()

	parent := traceOf(span.SpanContext())
	event.SetExtension(events.ExtensionTraceParent, traceParent(parent))
	log := s.log.With("id", id, "reason", why, "traceId", parent.TraceID().String())

	err := s.broker.Publish(ctx, s.topic, event)
	if err != nil {
		s.meters.brokerErrors.WithLabelValues(errorPublish).Inc()
		log.Error("send event", "error", err)
		// The broker's words are in the log: they can have its address in them.
		span.SetStatus(codes.Error, errorPublish)
	} else {
		s.meters.published.WithLabelValues(why).Inc()
		log.Debug("event sent", "generation", generation, "event", event.ID())
	}

	if s.sent(id, generation, err == nil) {
		s.consider(id)
	}
}

// traceOf is the context that an event carries: that of the span which sends it, sampled
// or not. Where tracing is off there is none, and one is made, by which the log lines of
// all that comes of the event are found; it says sampled, since nobody decided against it.
func traceOf(span trace.SpanContext) trace.SpanContext {
	if span.IsValid() {
		return span
	}

	var (
		traceID trace.TraceID
		spanID  trace.SpanID
	)

	// It does not fail: crypto/rand.
	_, _ = rand.Read(traceID[:])
	_, _ = rand.Read(spanID[:])

	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled})
}

// traceParent writes a context as W3C's Trace Context does.
func traceParent(span trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)

	return carrier["traceparent"]
}

// sent notes what became of an event, and says whether to look at the resource again.
func (s *Sentinel) sent(id string, generation int32, well bool) bool {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()

	e := s.index.by[id]
	if e == nil {
		return false
	}

	again := e.again
	e.busy, e.again = false, false
	now := s.clock.Now()

	if well {
		e.sentGeneration, e.sentTime = generation, now
		e.failures, e.notBefore = 0, time.Time{}

		return again
	}

	const most = 10

	wait := min(minBackoff<<min(e.failures, most), maxBackoff)
	e.failures++
	e.notBefore = now.Add(wait)
	s.clock.AfterFunc(wait, func() { s.consider(id) })

	return false
}
