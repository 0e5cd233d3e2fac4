// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/json"
	"errors"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FuzzParse checks that each message of the broker is either a valid event or malformed.
func FuzzParse(f *testing.F) {
	for _, data := range []string{
		`{"id":"a","kind":"Cluster","generation":1}`, `{"id":"../x","generation":1}`, `{"id":"a","generation":1e3}`,
		`{"id":"a","generation":99999999999999999999}`, `[]`, `{"id":"a","generation":1} {}`, `{"a":{"b":[1,2.5,null,true]}}`, ``,
	} {
		f.Add("io.hyperfleet.cluster.reconcile", []byte(data))
	}

	f.Add("io.hyperfleet.reconcile", []byte(`{"id":"a","generation":1}`))

	f.Fuzz(func(t *testing.T, kind string, encoded []byte) {
		event := cloudevents.NewEvent()
		event.SetType(kind)
		event.DataEncoded = encoded

		about, data, err := parseEvent(event)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("error %v, want ErrMalformed", err)
			}

			return
		}

		if about.ResourceID == "" || len(validation.IsValidLabelValue(about.ResourceID)) > 0 || about.Generation < 1 || about.Generation > 1<<31-1 {
			t.Errorf("accepted an invalid event: %+v", about)
		}

		if _, err := json.Marshal(data); err != nil {
			t.Errorf("the data of an accepted event is not JSON: %v", err)
		}
	})
}
