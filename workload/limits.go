// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import "unicode/utf8"

// Limits of a RunnerJob's fields, as its API type declares them. MaxLabels is a number of labels.
// All others are lengths in characters.
const (
	MaxLabels           = 100
	MaxLabelLength      = 256
	MaxTextLength       = 1024
	MaxRepositoryLength = 512
	MaxNameLength       = 255
	MaxConclusionLength = 64
	MaxURLLength        = 2048
)

// DropLongURL returns the URL, or "" if the URL is longer than a RunnerJob allows. It never
// truncates, because a truncated URL does not work.
func DropLongURL(address string) string {
	if utf8.RuneCountInString(address) > MaxURLLength {
		return ""
	}

	return address
}

// Truncate shortens a text to at most limit characters.
func Truncate(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}

	return string([]rune(text)[:limit])
}
