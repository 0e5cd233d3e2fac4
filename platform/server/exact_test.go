// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// exactSpec has values that decoding to float64 changes.
const exactSpec = `{"big":9007199254740993,"huge":123456789012345678901234567890,"small":-9223372036854775808,` +
	`"decimal":0.1000000000000000055511151231257827,"price":1.10,"exponent":1.5e300,"tiny":5e-324,"text":"\ud83d\ude00<&>\u2028"}`

func TestAcceptedValuesComeBack(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)

	type object struct {
		ID   string `json:"id"`
		Spec raw    `json:"spec"`
		Data raw    `json:"data"`
	}

	require := func(place string, got raw) {
		t.Helper()

		if !exactjson.IsEqual(got, []byte(exactSpec)) {
			t.Errorf("%s: %s, want %s", place, got, exactSpec)
		}
	}

	created := as[object](t, a.do("POST", "/clusters", `{"name":"exact","spec":`+exactSpec+`}`), 201)
	path := "/clusters/" + created.ID

	require("created", created.Spec)
	require("read", as[object](t, a.do("GET", path, nil), 200).Spec)

	for _, query := range []string{"", "?fields=spec"} {
		require("listed "+query, as[struct{ Items []object }](t, a.do("GET", "/clusters"+query, nil), 200).Items[0].Spec)
	}

	if got := as[openapi.Resource](t, a.do("PATCH", path, `{"spec":{"big":9007199254740992}}`), 200); got.Generation != 2 {
		t.Errorf("generation %d after a change in the last bit, want 2", got.Generation)
	}

	require("patched", as[object](t, a.do("PATCH", path, `{"spec":`+exactSpec+`}`), 200).Spec)

	if got := as[openapi.Resource](t, a.do("PATCH", path, `{"spec":`+strings.Replace(exactSpec, "1.10", "110e-2", 1)+`}`), 200); got.Generation != 3 {
		t.Errorf("generation %d after a change of the notation, want 3", got.Generation)
	}

	report := a.statusReport("dns", 3, "True")
	data := openapi.Object{}

	must.Do(t, exactjson.Unmarshal([]byte(exactSpec), &data))

	report.Data = &data

	require("reported", as[object](t, a.do("PUT", path+"/statuses", report), 201).Data)
	require("statuses", as[struct{ Items []object }](t, a.do("GET", path+"/statuses", nil), 200).Items[0].Data)
}

// raw is JSON as it was sent.
type raw []byte

// UnmarshalJSON keeps the text.
func (r *raw) UnmarshalJSON(data []byte) error {
	*r = append(raw{}, data...)

	return nil
}

func TestWhatCannotBeKeptIsRefused(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	id := a.create("/clusters", "exact", nil).Id

	for name, tc := range map[string]struct{ part, field, message string }{
		"equal keys":       {`{"a":{"b":[{"x":1,"x":2}]}}`, "a.b[0].x", "is listed more than once"},
		"invalid UTF-8":    {"{\"a\":[\"\xff\"]}", "a[0]", "has text that is not valid UTF-8"},
		"half a surrogate": {`{"a":"\ud83d"}`, "a", `has text with half of a surrogate pair (\uD800 to \uDFFF)`},
		"NUL":              {`{"a":"\u0000"}`, "a", "has text with the character U+0000"},
		"NUL in a key":     {`{"a\u0000":1}`, "", "has text with the character U+0000"},
		"too many digits":  {`{"a":1e400}`, "a", "has too many digits when it is written without an exponent"},
		"expansion": {`{"a":[` + strings.Repeat("1e300,", 250) + `1]}`, "a[221]",
			"has too many digits when it is written without an exponent"},
		"too large":  {`{"a":[1e309]}`, "a[0]", "is too large"},
		"minus zero": {`{"a":-0.0}`, "a", "is a zero with a minus sign: write 0"},
	} {
		for place, request := range map[string][3]string{
			"spec":  {"POST", "/clusters", `{"name":"other","spec":` + tc.part + `}`},
			"patch": {"PATCH", "/clusters/" + id, `{"spec":` + tc.part + `}`},
			"data": {"PUT", "/clusters/" + id + "/statuses", `{"adapter":"dns","observed_generation":1,"observed_time":"` +
				startTime().Format("2006-01-02T15:04:05Z") + `","conditions":[],"data":` + tc.part + `}`},
		} {
			field := strings.TrimSuffix(strings.Replace(place, "patch", "spec", 1)+"."+tc.field, ".")

			problem := requireProblem(t, a.do(request[0], request[1], request[2]), "HYPERFLEET-VAL-001")
			if problem.Status != http.StatusBadRequest || len(problem.Errors) != 1 || problem.Errors[0] != (openapi.FieldError{Field: field, Message: tc.message}) {
				t.Errorf("%s in %s: %+v, want %s: %s", name, place, problem.Errors, field, tc.message)
			}
		}
	}

	for body, message := range map[string]string{
		`{"name":"two","spec":{}} {"name":"three","spec":{}}`: "ends before line 1, column 26: send one document",
		`{"name":"two","name":"three","spec":{}}`:             "is listed more than once",
		`{"name":"two","spec":{}`:                             "ends too early",
	} {
		problem := requireProblem(t, a.do("POST", "/clusters", body), "HYPERFLEET-VAL-001")
		if len(problem.Errors) != 1 || problem.Errors[0].Message != message {
			t.Errorf("%s: %+v, want %s", body, problem.Errors, message)
		}
	}

	for _, query := range []string{"search=name%3D'%00'", "search=name%3D'%ff'", "ref_type=%00&ref_target_id=a"} {
		problem := requireProblem(t, a.do("GET", "/clusters?"+query, nil), "HYPERFLEET-VAL-001")
		if name, _, _ := strings.Cut(query, "="); problem.Errors[0].Field != name {
			t.Errorf("%s: %+v", query, problem.Errors)
		}
	}

	if got := a.do("GET", "/clusters", nil); strings.Contains(string(got.body), "two") {
		t.Errorf("a refused resource is stored: %s", got.body)
	}
}
