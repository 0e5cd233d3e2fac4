// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import "unicode/utf8"

// maxURL is how many characters the URL of a RunnerJob may have.
const maxURL = 2048

// Link keeps a URL only if a RunnerJob can hold it whole: half a link leads nowhere.
func Link(address string) string {
	if utf8.RuneCountInString(address) > maxURL {
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
