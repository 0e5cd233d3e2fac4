// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"math"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/api/exactjson"
)

// ErrMalformed is the error of an event with the wrong type or without required data. A redelivery
// of the event would fail with the same error.
var ErrMalformed = errors.New("malformed event")

// parseEvent returns the identity of an event and its data, which is the variable event of expressions.
func parseEvent(event cloudevents.Event) (EventTrace, map[string]any, error) {
	parsed := EventTrace{ID: event.ID(), Type: event.Type()}

	if !isResourceEvent(event.Type()) {
		return parsed, nil, fmt.Errorf("%w: type is %q, want %sKIND%s",
			ErrMalformed, event.Type(), events.TypePrefix, events.TypeSuffix)
	}

	value, err := exactjson.Parse(event.Data())
	if err != nil {
		return parsed, nil, fmt.Errorf("%w: data: %w", ErrMalformed, err)
	}

	data, ok := value.(map[string]any)
	if !ok {
		return parsed, nil, fmt.Errorf("%w: data is not a JSON object", ErrMalformed)
	}

	id, _ := data["id"].(string)
	if id == "" || len(validation.IsValidLabelValue(id)) > 0 {
		return parsed, nil, fmt.Errorf("%w: data.id is missing or is not a valid label value", ErrMalformed)
	}

	generation, ok := data["generation"].(int64)
	if !ok || generation < 1 || generation > math.MaxInt32 {
		return parsed, nil, fmt.Errorf("%w: data.generation is not a whole number from 1 to %d", ErrMalformed, math.MaxInt32)
	}

	parsed.Kind, _ = data["kind"].(string)
	parsed.ResourceID, parsed.Generation = id, generation

	return parsed, data, nil
}

// isResourceEvent reports whether a type is that of an event about a resource, from this platform or from upstream's
// Sentinel. The last word of the type does not matter, because the adapter reads the resource from the API. Upstream's
// fixtures have events such as io.hyperfleet.cluster.updated.
func isResourceEvent(eventType string) bool {
	for _, prefix := range []string{events.TypePrefix, events.UpstreamTypePrefix} {
		rest, ok := strings.CutPrefix(eventType, prefix)
		kind, verb, _ := strings.Cut(rest, ".")

		if ok && kind != "" && verb != "" {
			return true
		}
	}

	return false
}
