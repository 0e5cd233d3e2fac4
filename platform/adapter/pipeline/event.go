// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"math"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/api/events"
)

// ErrMalformed is an event that nobody can handle: of another type, or without what every
// event has. Trying it again changes nothing.
var ErrMalformed = errors.New("malformed event")

// subject is what an event is about.
type subject struct {
	id, kind   string
	generation int64
	// data is the event's data as expressions see it: the variable event.
	data map[string]any
}

// parse reads an event.
func parse(event cloudevents.Event) (subject, error) {
	if !isReconcile(event.Type()) {
		return subject{}, fmt.Errorf("%w: its type is %q, want %sKIND%s",
			ErrMalformed, event.Type(), events.TypePrefix, events.TypeSuffix)
	}

	data, err := object(event.Data())
	if err != nil {
		return subject{}, fmt.Errorf("%w: its data is no JSON object: %w", ErrMalformed, err)
	}

	s := subject{data: data}
	s.kind, _ = data["kind"].(string)

	if s.id, _ = data["id"].(string); s.id == "" || len(validation.IsValidLabelValue(s.id)) > 0 {
		return subject{}, fmt.Errorf("%w: its data has no id that can be one", ErrMalformed)
	}

	generation, ok := data["generation"].(int64)
	if !ok || generation < 1 || generation > math.MaxInt32 {
		return subject{}, fmt.Errorf("%w: the generation in its data is no whole number from 1 on, of 32 bits", ErrMalformed)
	}

	s.generation = generation

	return s, nil
}

// isReconcile knows the type of events, and the one that upstream's Sentinel gives them.
func isReconcile(kind string) bool {
	for _, prefix := range []string{events.TypePrefix, events.UpstreamTypePrefix} {
		rest, ok := strings.CutPrefix(kind, prefix)
		if ok && len(rest) > len(events.TypeSuffix) && strings.HasSuffix(rest, events.TypeSuffix) {
			return true
		}
	}

	return false
}

// object reads a JSON object; its whole numbers are int64, the others float64.
func object(data []byte) (map[string]any, error) {
	value, err := decode(data)
	if err != nil {
		return nil, err
	}

	out, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("it is something else")
	}

	return out, nil
}

// decode reads one JSON value. Errors don't hold what was read.
func decode(data []byte) (any, error) {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return nil, errors.New("it is no JSON")
	}

	return value, nil
}
