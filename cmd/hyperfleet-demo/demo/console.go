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

// console writes progress: lines that stay, and, on a terminal, a block below them that
// is redrawn in place. Every change is one write, so that nothing flickers.
type console struct {
	out   io.Writer
	clock clock.PassiveClock
	start time.Time
	// size of the terminal; nil without one.
	size func() (width, height int)

	mu    sync.Mutex
	drawn int
	last  view
}

// newConsole writes to out. The live block needs out to be a terminal, and plain false.
func newConsole(out io.Writer, plain bool, c clock.PassiveClock) *console {
	con := &console{out: out, clock: c, start: c.Now()}

	file, ok := out.(*os.File)
	if !ok || plain || !screen.IsTerminal(file) {
		return con
	}

	con.size = func() (int, int) { return screen.Size(file) }
	con.write(screen.HideCursor)

	return con
}

func (c *console) elapsed() time.Duration { return c.clock.Since(c.start) }

// linef appends a line that stays, with the time since the start before it.
func (c *console) linef(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write(c.rewind() + c.stamp() + fmt.Sprintf(format, args...) + "\n")
}

// text appends lines as they are.
func (c *console) text(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write(c.rewind() + strings.TrimRight(text, "\n") + "\n")
}

// show draws the view: on a terminal in place of the one before, else as the lines that
// tell what has changed.
func (c *console) show(v view) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.size != nil {
		c.draw(v.render(c.size()))

		return
	}

	var out strings.Builder
	for _, line := range v.changes(c.last) {
		out.WriteString(c.stamp() + line + "\n")
	}

	c.last = v
	c.write(out.String())
}

// step shows what is being done, with its time running, and appends a line when it is
// over. The line is what do returns, else the title.
func (c *console) step(title string, do func() (string, error)) error {
	begin := c.clock.Now()
	stop := c.animate(title, begin)
	result, err := do()
	stop()

	took := screen.Age(c.clock.Since(begin))

	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errInterrupted):
		c.linef("%s: stopped after %s", title, took)
	case err != nil:
		c.linef("%s: FAILED after %s", title, took)
	case result == "":
		c.linef("%s (%s)", title, took)
	default:
		c.linef("%s: %s (%s)", title, result, took)
	}

	return err
}

// animate redraws the running step until the function it gives is called.
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
			c.draw([]string{screen.Clip(c.stamp()+title+" ... "+screen.Age(c.clock.Since(begin)), width)})
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

// close leaves what was drawn last, below everything else, and the terminal as it was.
func (c *console) close() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.drawn = 0
	if c.size != nil {
		c.write(screen.ShowCursor)
	}
}

// frameInterval is how often a terminal is redrawn.
const frameInterval = 100 * time.Millisecond

func (c *console) stamp() string { return fmt.Sprintf("[%6.1fs] ", c.elapsed().Seconds()) }

// draw replaces the block. The caller holds mu.
func (c *console) draw(lines []string) {
	var out strings.Builder

	out.WriteString(screen.HoldFrame)

	if c.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\r", c.drawn)
	}

	for _, line := range lines {
		out.WriteString(line + screen.EraseLine + "\n")
	}

	out.WriteString(screen.EraseBelow + screen.ShowFrame)
	c.write(out.String())
	c.drawn = len(lines)
}

// rewind gives what erases the block. The caller holds mu.
func (c *console) rewind() string {
	if c.drawn == 0 {
		return ""
	}

	n := c.drawn
	c.drawn = 0

	return fmt.Sprintf("\x1b[%dA\r", n) + screen.EraseBelow
}

// write ignores errors: a reader that went away must not end the run.
func (c *console) write(text string) {
	if text != "" {
		_, _ = io.WriteString(c.out, text)
	}
}
