// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

// Tail gives what is kept of lines within a limit.
func Tail(limit int, lines ...string) string {
	t := tail{limit: limit}
	for _, line := range lines {
		t.add(line)
	}

	return t.text()
}

// Platforms are the names of the platforms.
func Platforms() []string { return platformNames() }

// Read tells whether a platform sees an event in a line, and the event's text.
func Read(platform, line string) (string, bool) {
	e, ok := platformOf(platform).read(line)

	return e.text, ok
}
