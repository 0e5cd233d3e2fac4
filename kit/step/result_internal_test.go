// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import "testing"

// TestMessagesControlNoTerminal checks that a message contains no characters that control a terminal or the direction
// of the text, because a message can quote another system.
func TestMessagesControlNoTerminal(t *testing.T) {
	t.Parallel()

	if got := sanitizeMessage("clone:\x1b[2J\r\u009b1A\u202eredirect\x00\n\tبناء\xff"); got != "clone:[2J1Aredirect\n\tبناء?" {
		t.Errorf("message %q", got)
	}
}
