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

// ErrMalformed is the error of an event with the wrong type or without required data. A redelivery
// of the event would fail with the same error.
var ErrMalformed = errors.New("malformed event")

// parseEvent returns the identity of an event and its data, which is the variable event of expressions.
func parseEvent(event cloudevents.Event) (EventTrace, map[string]any, error) {
	parsed := EventTrace{ID: event.ID(), Type: event.Type()}

	if !isReconcileEvent(event.Type()) {
		return parsed, nil, fmt.Errorf("%w: type is %q, want %sKIND%s",
			ErrMalformed, event.Type(), events.TypePrefix, events.TypeSuffix)
	}

	value, err := decodeJSON(event.Data())
	data, ok := value.(map[string]any)

	if err != nil || !ok {
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

// isReconcileEvent reports whether a type is that of a reconcile event of this platform or of
// upstream's Sentinel.
func isReconcileEvent(eventType string) bool {
	for _, prefix := range []string{events.TypePrefix, events.UpstreamTypePrefix} {
		rest, ok := strings.CutPrefix(eventType, prefix)
		if ok && len(rest) > len(events.TypeSuffix) && strings.HasSuffix(rest, events.TypeSuffix) {
			return true
		}
	}

	return false
}

// decodeJSON decodes one JSON value. It decodes whole numbers to int64 and other numbers to float64.
// Its error does not contain the data.
func decodeJSON(data []byte) (any, error) {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return nil, errors.New("invalid JSON")
	}

	return value, nil
}
