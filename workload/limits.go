// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import "unicode/utf8"

// Limits of a RunnerJob's fields, in characters but for MaxLabels, which counts labels. They
// are those of its API type.
const (
	MaxLabels     = 100
	MaxLabel      = 256
	MaxText       = 1024
	MaxRepository = 512
	MaxName       = 255
	MaxConclusion = 64
	MaxURL        = 2048
)

// Link keeps a URL only if a RunnerJob can hold it whole: half a link leads nowhere.
func Link(address string) string {
	if utf8.RuneCountInString(address) > MaxURL {
		return ""
	}

	return address
}

// Cut shortens a text to so many characters.
func Cut(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}

	return string([]rune(text)[:limit])
}
