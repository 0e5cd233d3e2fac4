// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exactjson

import (
	stdjson "encoding/json"
	"math"
	"strconv"
	"strings"
)

// maxExponent is larger than the number of digits in any document, so that no sum of it and such a number
// overflows.
const maxExponent = math.MaxInt64 / 4

// decimal is the value of a number: 0.DIGITS times ten to the power of exponent. Equal numbers are equal
// decimals, except zeros with a sign.
type decimal struct {
	isNegative bool
	// digits has no leading or trailing zeros. It is empty for zero.
	digits   string
	exponent int64
}

// splitExponent returns a JSON number without its exponent, and the exponent, which counts as maxExponent if
// it is beyond that.
func splitExponent(literal string) (mantissa string, exponent int64) {
	mantissa, text, hasExponent := strings.Cut(strings.ToLower(literal), "e")
	if !hasExponent {
		return mantissa, 0
	}

	// The result of an exponent that does not fit is the largest or smallest number.
	exponent, _ = strconv.ParseInt(text, 10, 64)

	return mantissa, min(max(exponent, -maxExponent), maxExponent)
}

// parseDecimal returns the value of a JSON number.
func parseDecimal(literal string) decimal {
	mantissa, exponent := splitExponent(literal)
	mantissa, isNegative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")

	digits := strings.TrimLeft(whole+fraction, "0")
	exponent += int64(len(whole)) - int64(len(whole+fraction)-len(digits))
	digits = strings.TrimRight(digits, "0")

	if digits == "" {
		exponent = 0
	}

	return decimal{isNegative: isNegative, digits: digits, exponent: exponent}
}

// newNumber converts a number to an int64 or a float64 if one of them has the same value.
func newNumber(literal string) any {
	if whole, err := strconv.ParseInt(literal, 10, 64); err == nil && literal != "-0" {
		return whole
	}

	value, err := strconv.ParseFloat(literal, 64)
	if err == nil && parseDecimal(strconv.FormatFloat(value, 'e', -1, 64)) == parseDecimal(literal) {
		return value
	}

	return stdjson.Number(literal)
}

// WrittenLength returns how many characters a JSON number has at most if it is written without an exponent.
func WrittenLength(literal string) int64 {
	mantissa, exponent := splitExponent(literal)

	return int64(len(mantissa)) + max(exponent, -exponent)
}
