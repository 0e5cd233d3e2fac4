// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exactjson_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
)

func TestValuesAreKept(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]any{
		"9007199254740993":            int64(9007199254740993),
		"-9223372036854775808":        int64(math.MinInt64),
		"9223372036854775808":         json.Number("9223372036854775808"),
		"10000000000000000000":        1e19,
		"9223372036854775809":         json.Number("9223372036854775809"),
		"1.5":                         1.5,
		"0.1":                         0.1,
		"1.10":                        1.1,
		"1e2":                         100.0,
		"1E400":                       json.Number("1E400"),
		"0.1000000000000000000000001": json.Number("0.1000000000000000000000001"),
		`"\ud83d\ude00\u0000<"`:       "😀\x00<",
		"[ 1 ,\n{ \"a\" : null , \"A\" : [ ] } , true , false ]": []any{
			int64(1), map[string]any{"a": nil, "A": []any{}}, true, false,
		},
		`{"a\\u":"b\\ud800"}`: map[string]any{`a\u`: `b\ud800`},
	} {
		got, err := exactjson.Parse([]byte(text))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Parse(%s): %v, (-want +got):\n%s", text, err, diff)
		}
	}

	if got, err := exactjson.Parse([]byte("-0")); err != nil || !math.Signbit(got.(float64)) {
		t.Errorf("Parse(-0) = %v, %v", got, err)
	}
}

func TestWhatCannotBeKeptIsRefused(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"":                                "the JSON document ends too early",
		"{\n \"a\": x}":                   "the JSON document is not valid JSON at line 2, column 7",
		`{"a":1} {"a":2}`:                 "the JSON document ends before line 1, column 9: send one document",
		`{"a":{"b/c":[1,{"x":1,"x":2}]}}`: "/a/b~1c/1/x is listed more than once",
		`{"a":1,"\u0061":2}`:              "/a is listed more than once",
		"{\"a\":[\"\xff\"]}":              "/a/0 has text that is not valid UTF-8",
		"{\"\xff\":1}":                    "the JSON document has text that is not valid UTF-8",
		`{"a":"\ud800"}`:                  `/a has text with half of a surrogate pair (\uD800 to \uDFFF)`,
		`{"a":"\ude00\ud83d"}`:            `/a has text with half of a surrogate pair (\uD800 to \uDFFF)`,
		`{"a":"\\\ud83dx"}`:               `/a has text with half of a surrogate pair (\uD800 to \uDFFF)`,
		`{"a":{"\ud83d\u0041":1}}`:        `/a has text with half of a surrogate pair (\uD800 to \uDFFF)`,
		strings.Repeat("[", 20000) + "1":  "the JSON document is not valid JSON at line 1, column 10001",
		`{"` + strings.Repeat("k", 99) + `":"` + "\xc3" + `"}`: "/" + strings.Repeat("k", 64) + "... has text that is not valid UTF-8",
	} {
		_, err := exactjson.Parse([]byte(text))

		var typed *exactjson.Error
		if !errors.As(err, &typed) || typed.Error() != want {
			t.Errorf("Parse(%.60q): %v, want %s", text, err, want)
		}
	}
}

func TestUnmarshal(t *testing.T) {
	t.Parallel()

	type object struct {
		Name string         `json:"name"`
		Spec openapi.Object `json:"spec"`
	}

	var got object

	err := exactjson.Unmarshal([]byte(`{"name":"a","Name":"b","spec":{"n":9007199254740993,"d":0.10000000000000000001}}`), &got)
	want := object{"a", openapi.Object{"n": int64(9007199254740993), "d": json.Number("0.10000000000000000001")}}

	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}

	if err := exactjson.Unmarshal([]byte(`{"spec":{"a":1,"a":2}}`), &got); err == nil || err.Error() != "/spec/a is listed more than once" {
		t.Error(err)
	}

	var typed map[string]any
	if err := exactjson.Unmarshal([]byte(`[1]`), &typed); err == nil || err.Error() != "the JSON document is not an object" {
		t.Error(err)
	}

	if err := exactjson.Unmarshal([]byte(`null`), &typed); err != nil || typed != nil {
		t.Error(typed, err)
	}
}

func TestCheckRejectsValues(t *testing.T) {
	t.Parallel()

	err := exactjson.Check([]byte(`{"a":["x",1e400,2]}`), func(value any) string {
		if number, ok := value.(json.Number); ok && exactjson.WrittenLength(number.String()) > 400 {
			return "is too long"
		}

		return ""
	})
	if err == nil || err.Error() != "/a/1 is too long" {
		t.Error(err)
	}
}

func TestWrittenLength(t *testing.T) {
	t.Parallel()

	for literal, want := range map[string]int64{"12": 2, "1.50": 4, "1e3": 4, "-1.5E-3": 7, "1e99999999999999999999": 1 + math.MaxInt64/4} {
		if got := exactjson.WrittenLength(literal); got != want {
			t.Errorf("WrittenLength(%s) = %d, want %d", literal, got, want)
		}
	}
}

func TestIsEqual(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":[1.0,2e1]}`, `{"b":[1,20],"a":10e-1}`, true},
		{`9007199254740993`, `9007199254740992`, false},
		{`0.1`, `0.10000000000000000001`, false},
		{`0`, `0.00e5`, true},
		{`{"a":null}`, `{}`, false},
		{`{"a":null}`, `{"b":null}`, false},
		{`[{}]`, `[[]]`, false},
		{`[1]`, `[1,1]`, false},
		{`"1"`, `1`, false},
		{`1`, `x`, false},
	} {
		if got := exactjson.IsEqual([]byte(tc.a), []byte(tc.b)); got != tc.want {
			t.Errorf("IsEqual(%s, %s) = %t", tc.a, tc.b, got)
		}
	}
}

// FuzzParse checks that what Parse accepts has the same value when it is encoded again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-2.50,1e30,"\ud83d\ude00"]}`, `9007199254740993`, `1e-7`, `123456789.123456789123456789`, `{"a":1,"a":1}`, "\"\xff\"",
		`"\\ud800"`, `-0.0`, `5e-324`, `1e309`,
	} {
		f.Add([]byte(seed))
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		value, err := exactjson.Parse(data)
		if err != nil {
			return
		}

		again, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}

		if !exactjson.IsEqual(data, again) {
			t.Errorf("%q became %q", data, again)
		}

		if number, ok := value.(float64); ok {
			literal, _ := new(big.Rat).SetString(strings.TrimSpace(string(data)))
			if literal == nil {
				return // its exponent is too large for a big.Rat
			}

			if encoded, _ := new(big.Rat).SetString(string(again)); literal.Cmp(encoded) != 0 {
				t.Errorf("%s became %v", data, number)
			}
		}
	})
}
