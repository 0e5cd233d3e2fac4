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

// parse reads what an event is about, and its data as expressions see it: the variable event.
func parse(event cloudevents.Event) (EventTrace, map[string]any, error) {
	about := EventTrace{ID: event.ID(), Type: event.Type()}

	if !isReconcile(event.Type()) {
		return about, nil, fmt.Errorf("%w: its type is %q, want %sKIND%s",
			ErrMalformed, event.Type(), events.TypePrefix, events.TypeSuffix)
	}

	value, err := decode(event.Data())
	data, ok := value.(map[string]any)

	if err != nil || !ok {
		return about, nil, fmt.Errorf("%w: its data is no JSON object", ErrMalformed)
	}

	id, _ := data["id"].(string)
	if id == "" || len(validation.IsValidLabelValue(id)) > 0 {
		return about, nil, fmt.Errorf("%w: its data has no id that can be one", ErrMalformed)
	}

	generation, ok := data["generation"].(int64)
	if !ok || generation < 1 || generation > math.MaxInt32 {
		return about, nil, fmt.Errorf("%w: the generation in its data is no whole number from 1 on, of 32 bits", ErrMalformed)
	}

	about.Kind, _ = data["kind"].(string)
	about.ResourceID, about.Generation = id, generation

	return about, data, nil
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

// decode reads one JSON value: whole numbers are int64, the others float64. Errors don't hold
// what was read.
func decode(data []byte) (any, error) {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return nil, errors.New("it is no JSON")
	}

	return value, nil
}
