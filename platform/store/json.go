// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
)

const (
	// maxNumberLength is the maximum length of a number without an exponent, in characters. All numbers that
	// a double can hold are shorter.
	maxNumberLength = 400
	// maxExpansion is by how many characters a document may grow because PostgreSQL writes its numbers
	// without exponents.
	maxExpansion = 64 << 10
)

// CheckJSON returns an *exactjson.Error if the database would not return a JSON document as it was stored.
func CheckJSON(data []byte) error {
	expansion := int64(0)

	return exactjson.Check(data, func(value any) string {
		number, isNumber := value.(json.Number)
		if !isNumber {
			if text, _ := value.(string); strings.ContainsRune(text, 0) {
				return "has text with the character U+0000"
			}

			return ""
		}

		literal := number.String()
		length := exactjson.WrittenLength(literal)
		expansion += length - int64(len(literal))

		switch mantissa, _, _ := strings.Cut(strings.ToLower(literal), "e"); {
		case length > maxNumberLength || expansion > maxExpansion:
			return "has too many digits when it is written without an exponent"
		case !isInRange(literal):
			return "is too large"
		case strings.HasPrefix(literal, "-") && !strings.ContainsAny(mantissa, "123456789"):
			return "is a zero with a minus sign: write 0"
		default:
			return ""
		}
	})
}

// isInRange returns true if a double can hold a number of this size. Validators of schemas need one.
func isInRange(literal string) bool {
	_, err := strconv.ParseFloat(literal, 64)

	return err == nil
}
