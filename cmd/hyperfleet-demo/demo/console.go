// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// console writes progress. It appends lines and, on a terminal, redraws a block below these lines in
// place. Each change is a single write, so that the terminal does not flicker.
type console struct {
	out   io.Writer
	clock clock.PassiveClock
	start time.Time
	// size returns the size of the terminal. It is nil if out is not a terminal.
	size func() (width, height int)

	mu sync.Mutex
	// drawn is the number of lines in the block.
	drawn    int
	lastView view
}

// newConsole returns a console that writes to out. It draws the live block only if out is a terminal.
func newConsole(out io.Writer, clk clock.PassiveClock) *console {
	con := &console{out: out, clock: clk, start: clk.Now()}

	file, ok := out.(*os.File)
	if !ok || !screen.IsTerminal(file) {
		return con
	}

	con.size = func() (int, int) { return screen.Size(file) }
	con.write(screen.HideCursor)

	return con
}

func (c *console) elapsed() time.Duration { return c.clock.Since(c.start) }

// printf appends a line that starts with the time since the start of the demo.
func (c *console) printf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write(c.takeRewind() + c.timestamp() + fmt.Sprintf(format, args...) + "\n")
}

// printText appends text without a time stamp.
func (c *console) printText(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write(c.takeRewind() + strings.TrimRight(text, "\n") + "\n")
}

// show draws the view. On a terminal, it replaces the previous view. Otherwise, it appends one line for
// each change since the previous view.
func (c *console) show(v view) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.size != nil {
		c.draw(v.render(c.size()))

		return
	}

	var out strings.Builder
	for _, line := range v.changes(c.lastView) {
		out.WriteString(c.timestamp() + line + "\n")
	}

	c.lastView = v
	c.write(out.String())
}

// runStep calls do, shows the title and the elapsed time while do runs, and then appends a line. The line
// has the title, the result of do if it is not empty, and the time that do took.
func (c *console) runStep(title string, do func() (string, error)) error {
	begin := c.clock.Now()
	stop := c.animate(title, begin)
	result, err := do()
	stop()

	took := screen.FormatAge(c.clock.Since(begin))

	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errInterrupted):
		c.printf("%s: stopped after %s", title, took)
	case err != nil:
		c.printf("%s: FAILED after %s", title, took)
	case result == "":
		c.printf("%s (%s)", title, took)
	default:
		c.printf("%s: %s (%s)", title, result, took)
	}

	return err
}

// animate redraws the line of the running step until the returned function is called.
func (c *console) animate(title string, begin time.Time) func() {
	if c.size == nil {
		return func() {}
	}

	done, over := make(chan struct{}), make(chan struct{})

	go func() {
		defer close(over)

		tick := time.NewTicker(frameInterval)
		defer tick.Stop()

		for {
			c.mu.Lock()
			width, _ := c.size()
			c.draw([]string{screen.Clip(c.timestamp()+title+" ... "+screen.FormatAge(c.clock.Since(begin)), width)})
			c.mu.Unlock()

			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()

	return func() {
		close(done)
		<-over
	}
}

// close keeps the last block on the screen and shows the cursor again.
func (c *console) close() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.drawn = 0
	if c.size != nil {
		c.write(screen.ShowCursor)
	}
}

// frameInterval is the interval between two frames on a terminal.
const frameInterval = 100 * time.Millisecond

func (c *console) timestamp() string { return fmt.Sprintf("[%6.1fs] ", c.elapsed().Seconds()) }

// draw replaces the block. The caller holds mu.
func (c *console) draw(lines []string) {
	var out strings.Builder

	out.WriteString(screen.BeginFrame)

	if c.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\r", c.drawn)
	}

	for _, line := range lines {
		out.WriteString(line + screen.EraseLine + "\n")
	}

	out.WriteString(screen.EraseBelow + screen.EndFrame)
	c.write(out.String())
	c.drawn = len(lines)
}

// takeRewind returns the escape sequence that erases the block, and resets drawn to zero, so that the
// block is erased only once. The caller holds mu.
func (c *console) takeRewind() string {
	if c.drawn == 0 {
		return ""
	}

	n := c.drawn
	c.drawn = 0

	return fmt.Sprintf("\x1b[%dA\r", n) + screen.EraseBelow
}

// write ignores errors, because a closed output must not end the run.
func (c *console) write(text string) {
	if text != "" {
		_, _ = io.WriteString(c.out, text)
	}
}
