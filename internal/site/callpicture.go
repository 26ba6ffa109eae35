package site

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
)

// callPicture is the SVG of a call: its way from the caller over the hub to the machines,
// and below it a bar for each span. Lengths across are in percent, those down in pixels, so
// that text has the same size in a window of any width.
type callPicture struct {
	Height int
	Words  string // the picture as text
	Boxes  []pictureBox
	Lines  []pictureLine // from a box to the next
	Bars   []pictureBar
	Axis   int    // baseline of the numbers below the bars
	End    string // the time at the right end of the bars
}

// pictureBox is the caller, the hub or a machine.
type pictureBox struct {
	X, Y  int
	Tone  string
	Texts []pictureText
}

// pictureText is a line of a box. Short is for a narrow window; empty: as Full.
type pictureText struct {
	Y           int
	Class       string
	Full, Short string
}

// pictureLine connects two boxes.
type pictureLine struct {
	X1, X2, Y1, Y2 int
	Class          string
}

// pictureBar is a span of the call.
type pictureBar struct {
	Y           int
	Label, Time string
	X, Width    string // percent
	Tone        string
}

// leastWidth is the width of the bar of a moment, in percent.
const leastWidth = 0.25

// The measures of the picture: percent across, pixels down.
const (
	boxWidth, boxHeight = 28, 68
	hubX, machineX      = 36, 72
	boxGap              = 12
	barsBelow           = 28 // from the boxes to the bars
	barPitch            = 40 // from a bar to the next
	axisHeight          = 20
)

// The most letters of a name in a picture.
const longName, shortName = 20, 10

// clip cuts a text to at most n letters.
func clip(text string, n int) string {
	if letters := []rune(text); len(letters) > n {
		return string(letters[:n-1]) + "…"
	}
	return text
}

// newBox returns a box with a name and lines below it. Empty lines are left out.
func newBox(x, y int, tone, name string, minor ...string) pictureBox {
	minor = slices.DeleteFunc(minor, func(s string) bool { return s == "" })
	box := pictureBox{X: x, Y: y, Tone: tone}
	for i, text := range append([]string{name}, minor...) {
		line := pictureText{Y: boxHeight/2 + 5 + 18*i - 9*len(minor), Class: "name", Full: clip(text, longName)}
		if i > 0 {
			line.Class, line.Full = "minor", clip(text, longName+4)
		}
		if short := clip(text, shortName+2*min(i, 1)); short != line.Full {
			line.Short = short
		}
		box.Texts = append(box.Texts, line)
	}
	return box
}

// drawCall returns the picture of a call with these steps, or nil if it neither waited nor
// reached a machine. from names the key or the program that made the call, if it is the
// reader's.
func drawCall(t *api.CallTrace, steps []callStep, from string) *callPicture {
	if len(t.Tries) == 0 && t.WaitedMS == 0 && t.FirstMS == 0 {
		return nil
	}
	machines := machineBoxes(t)
	deep := max(1, len(machines))*(boxHeight+boxGap) - boxGap
	middle := (deep - boxHeight) / 2
	caller, waited, sealed := "You", "", ""
	if !t.Mine {
		caller = cmp.Or(t.Caller, "Caller")
	}
	if t.WaitedMS > 0 {
		waited = "waited " + duration(t.WaitedMS)
	}
	if t.Sealed {
		sealed = "sealed"
	}
	hub := newBox(hubX, middle, "", "Hub", waited, sealed)
	line := pictureLine{X1: boxWidth, X2: hubX, Y1: middle + boxHeight/2, Y2: middle + boxHeight/2}
	p := &callPicture{Lines: []pictureLine{line}}
	line.X1, line.X2 = hubX+boxWidth, machineX
	names := []string{"the hub"}
	for _, box := range machines {
		line.Y2 = box.Y + boxHeight/2
		line.Class = ""
		if box.Tone == "bad" || box.Tone == "none" {
			line.Class = "off"
		}
		p.Lines = append(p.Lines, line)
		var words []string
		for _, text := range box.Texts {
			words = append(words, text.Full)
		}
		names = append(names, strings.Join(words, " "))
	}
	p.Boxes = append([]pictureBox{newBox(0, middle, "", caller, from), hub}, machines...)
	p.Words = "Path of the call: " + caller + ", then " + strings.Join(names, ", then ") + "; and the times of the table below."
	p.drawBars(steps, deep+barsBelow)
	return p
}

// machineBoxes returns a box for each machine that was tried. If a refused call reached no
// machine, an empty one is in its place.
func machineBoxes(t *api.CallTrace) (boxes []pictureBox) {
	type machine struct{ name, owner string }
	var order []machine
	results, tones := map[machine][]string{}, map[machine]string{}
	for i, try := range t.Tries {
		m := machine{try.Machine, try.Owner}
		if _, known := results[m]; !known {
			order = append(order, m)
		}
		result, tone := resultOf(t, i)
		if len(t.Tries) > 1 {
			result = fmt.Sprintf("%d. %s", i+1, result)
		}
		results[m], tones[m] = append(results[m], result), tone
	}
	for i, m := range order {
		owner := "of " + m.owner
		if !t.Mine {
			owner = ""
		}
		last := len(results[m]) - 1
		boxes = append(boxes, newBox(machineX, i*(boxHeight+boxGap), tones[m], m.name, owner, results[m][last]))
	}
	if len(boxes) == 0 && account.Unserved(t.Code) {
		boxes = append(boxes, newBox(machineX, 0, "none", "No machine"))
	}
	return boxes
}

// drawBars adds the bars, the first at y, and the axis below them.
func (p *callPicture) drawBars(steps []callStep, y int) {
	var total int64 = 1
	for _, step := range steps {
		total = max(total, step.AfterMS+step.TookMS)
	}
	percent := func(ms int64) float64 { return 100 * float64(ms) / float64(total) }
	for _, step := range steps {
		if step.Bar == "" {
			continue
		}
		p.Bars = append(p.Bars, pictureBar{Y: y, Label: step.Bar, Time: duration(step.TookMS), Tone: step.Tone,
			X: fmt.Sprintf("%.2f", percent(step.AfterMS)), Width: fmt.Sprintf("%.2f", max(percent(step.TookMS), leastWidth))})
		y += barPitch
	}
	p.Axis, p.End, p.Height = y+axisHeight-6, duration(total), y+axisHeight
}
